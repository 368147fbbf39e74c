// A folder as one file, in the plain format of tar: every file under its own name, by which sets of images are split.

const BLOCK = 512;
const FILE = "0";
const LONG_NAME = "L"; // of the file that follows, as GNU tar writes it
const ROOM_FOR_NAME = 100; // bytes

const encoded = (text) => new TextEncoder().encode(text);

function header(name, size, kind) {
  const block = new Uint8Array(BLOCK);
  const write = (text, at) => block.set(encoded(text), at);
  const octal = (value, digits) => value.toString(8).padStart(digits, "0");
  block.set(encoded(name).subarray(0, ROOM_FOR_NAME));
  write("0000644\0", 100);
  write(`${octal(size, 11)}\0`, 124);
  write(`${octal(0, 11)}\0`, 136);
  write("        ", 148);
  write(kind, 156);
  write("ustar\0" + "00", 257);
  const sum = block.reduce((total, byte) => total + byte, 0);
  write(`${octal(sum, 6)}\0 `, 148);
  return block;
}

const entry = (name, content, size, kind) => [header(name, size, kind), content, new Uint8Array((BLOCK - (size % BLOCK)) % BLOCK)];

function entries(file) {
  const name = file.webkitRelativePath.split("/").slice(1).join("/");
  const long = encoded(name);
  const before = long.length > ROOM_FOR_NAME ? entry("././@LongLink", long, long.length, LONG_NAME) : [];
  return [...before, ...entry(name, file, file.size, FILE)];
}

export const packed = (files) => new Blob([...files.flatMap(entries), new Uint8Array(2 * BLOCK)]);
