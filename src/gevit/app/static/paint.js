// Pixels that Python sent, on a canvas.

import { bytes } from "./api.js";

// Stops of colour scales that are even to the eye and safe for colour-blind readers, dark to bright.
const SCALES = {
  map: ["#00224e", "#35456c", "#666970", "#948e77", "#c8b866", "#fee838"],
  error: ["#000004", "#3b0f70", "#8c2981", "#de4968", "#fe9f6d", "#fcfdbf"],
};

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

function table(stops) {
  const colours = stops.map(channels);
  return Array.from({ length: 256 }, (_, level) => {
    const at = (level / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(at), colours.length - 2);
    return colours[low].map((value, k) => value + (at - low) * (colours[low + 1][k] - value));
  });
}

const TABLES = Object.fromEntries(Object.entries(SCALES).map(([name, stops]) => [name, table(stops)]));

function paint(canvas, width, height, colour) {
  const image = new ImageData(width, height);
  for (let pixel = 0; pixel < width * height; pixel++) image.data.set([...colour(pixel), 255], 4 * pixel);
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}

export function paintColours(canvas, colours, width, height = width) {
  const all = typeof colours === "string" ? bytes(colours) : colours;
  paint(canvas, width, height, (pixel) => all.subarray(3 * pixel, 3 * pixel + 3));
}

export function paintLevels(canvas, levels, width, height, scale) {
  paint(canvas, width, height, (pixel) => TABLES[scale][levels[pixel]]);
}

// Attention, bright orange, over the image in grey.
export function paintOver(canvas, colours, side, levels, width, height) {
  paint(canvas, side, side, (pixel) => {
    const row = Math.floor((Math.floor(pixel / side) * height) / side);
    const column = Math.floor(((pixel % side) * width) / side);
    const share = levels[row * width + column] / 255;
    const grey = 20 + 0.45 * (0.3 * colours[3 * pixel] + 0.59 * colours[3 * pixel + 1] + 0.11 * colours[3 * pixel + 2]);
    return [255, 150, 30].map((bright) => grey + Math.sqrt(share) * (bright - grey));
  });
}
