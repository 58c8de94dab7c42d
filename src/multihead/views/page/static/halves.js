// float16 into numbers, by a table of all 65,536 of them.

const TABLE = new Float32Array(65536);
for (let bits = 0; bits < 65536; bits++) {
  const sign = bits & 0x8000 ? -1 : 1, power = (bits >> 10) & 31, part = bits & 1023;
  TABLE[bits] = power === 31 ? (part ? NaN : sign * Infinity)
    : sign * (power ? 2 ** (power - 15) * (1 + part / 1024) : (2 ** -14 * part) / 1024);
}

export function fromHalves(buffer) {
  const bits = new Uint16Array(buffer), values = new Float32Array(bits.length);
  for (let i = 0; i < bits.length; i++) values[i] = TABLE[bits[i]];
  return values;
}
