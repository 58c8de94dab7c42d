"""The text that is looked at when none is given: plain prose with names that come back."""

DEFAULT_TEXT = """\
The harbour at Lindholm has two lights, a red one on the mole and a green one on the far side of \
the channel. Every evening Marta Ekström walked out along the mole to see whether the red light \
was burning, and every evening she counted the steps, because the number was never the same. \
Her brother Tobias said that nobody needed to count steps to a lamp. Marta said that nobody needed \
to collect the labels of tinned fish either, and that was the end of the conversation.

One night in October the red light did not burn. Marta counted four hundred and twelve steps, put \
her hand on the cold iron of the tower, and looked across the water at the green light, which \
turned as it always turned. A boat was coming in. She could hear the engine, slow and uneven, and \
she knew the engine: it was the Saint Helena, and the man at the wheel was old Peter Dahl, who saw \
badly in daylight and hardly at all in the dark.

She ran back. The door of the harbour office was locked, and the key hung where it always hung, \
behind the barometer in Tobias's kitchen. "The red light is out," she said. "The Saint Helena is \
coming in, and the red light is out." Tobias put down his cup. He took the key from behind the \
barometer, and he took the big lantern from under the stairs, and together they went out into the \
wind.

Tobias could not get the office open. The key turned, the lock clicked, and the door stayed where \
it was, because the rain had swollen the wood. So Marta took the lantern and ran along the mole, \
and this time she did not count the steps. She climbed the iron ladder, hung the lantern on the \
hook under the dead lamp, and pulled her red scarf over the glass.

It was not a good light. It was small and dull, and it shook in the wind. But it was red, and it \
was in the right place, and old Peter Dahl, who saw badly in daylight and hardly at all in the \
dark, turned the wheel of the Saint Helena a hand's breadth to the left. The boat came past the \
mole so close that Marta could have touched the rail. "Four hundred and twelve," she said to \
herself, and then, because there was nobody to hear it, she laughed.

In the morning the electrician came from Lindholm with a ladder and a new bulb. He asked who had \
tied a red scarf to the tower. Nobody knew. Tobias was at the kitchen table with his labels, and \
Marta was counting the steps to the lamp: four hundred and nine, four hundred and ten, four \
hundred and eleven.
"""
