"""A run that is stopped from within, at a step of its own."""


class Stop(Exception):  # noqa: N818
    pass


def stop_at(step: int):
    def after(done):
        if done.step == step:
            raise Stop

    return after
