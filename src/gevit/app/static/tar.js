// A folder as one file, in the plain format of tar: every image under its place in the folder.

const BLOCK = 512;

function header(name, size) {
  const block = new Uint8Array(BLOCK);
  const write = (text, at) => block.set(new TextEncoder().encode(text), at);
  const octal = (value, digits) => value.toString(8).padStart(digits, "0");
  write(name, 0);
  write("0000644\0", 100);
  write(`${octal(size, 11)}\0`, 124);
  write(`${octal(0, 11)}\0`, 136);
  write("        ", 148);
  write("0", 156);
  write("ustar\0" + "00", 257);
  const sum = block.reduce((total, byte) => total + byte, 0);
  write(`${octal(sum, 6)}\0 `, 148);
  return block;
}

// Names longer than the format has room for are shortened to class folder and number, which is all that counts.
function place(file, number) {
  const parts = file.webkitRelativePath.split("/").slice(1);
  const name = parts.join("/");
  if (new TextEncoder().encode(name).length <= 99) return name;
  const suffix = name.slice(name.lastIndexOf("."));
  return [...parts.slice(0, -1).map((part) => part.slice(0, 20)), `${number}${suffix}`].join("/").slice(-99);
}

export function packed(files) {
  const parts = [];
  for (const [number, file] of [...files].entries()) {
    parts.push(header(place(file, number), file.size), file, new Uint8Array((BLOCK - (file.size % BLOCK)) % BLOCK));
  }
  return new Blob([...parts, new Uint8Array(2 * BLOCK)]);
}
