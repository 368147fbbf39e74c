// A pad to draw a digit on, white on black as the models know them.

export class Pad {
  constructor(canvas, onDraw) {
    this.canvas = canvas;
    this.onDraw = onDraw;
    this.pen = canvas.getContext("2d");
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.last = this.place(event);
      this.stroke(event);
    });
    canvas.addEventListener("pointermove", (event) => canvas.hasPointerCapture(event.pointerId) && this.stroke(event));
    this.clear();
  }

  clear() {
    this.pen.fillStyle = "#000";
    this.pen.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  stroke(event) {
    const to = this.place(event);
    Object.assign(this.pen, { strokeStyle: "#fff", lineWidth: 24, lineCap: "round", lineJoin: "round" });
    this.pen.beginPath();
    this.pen.moveTo(...this.last);
    this.pen.lineTo(...to);
    this.pen.stroke();
    this.last = to;
    this.onDraw();
  }

  file() {
    return new Promise((resolve) => this.canvas.toBlob(resolve, "image/png"));
  }
}
