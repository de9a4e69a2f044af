// Sound that was sent but not yet confirmed by the server, kept to be sent again after a lost connection. Bounded.

export class Replay {
  constructor(limitBytes) {
    this.limitBytes = limitBytes;
    this.blocks = []; // {from, bytes}, back to back
    this.firstByte = 0; // position of the first kept byte in the whole stream
    this.endByte = 0; // bytes ever added
    this.droppedBytes = 0; // forgotten before they were confirmed
  }

  add(bytes) {
    this.blocks.push({ from: this.endByte, bytes });
    this.endByte += bytes.byteLength;
    while (this.endByte - this.firstByte > this.limitBytes) {
      this.droppedBytes += this.blocks[0].bytes.byteLength;
      this.forgetFirst();
    }
  }

  // The server has everything before this position.
  confirm(position) {
    while (this.blocks.length && this.blocks[0].from + this.blocks[0].bytes.byteLength <= position) this.forgetFirst();
  }

  forgetFirst() {
    const block = this.blocks.shift();
    this.firstByte = block.from + block.bytes.byteLength;
  }

  // Everything from this position on, oldest first; `missing` bytes before it can no longer be had.
  from(position) {
    const found = [];
    for (const { from, bytes } of this.blocks) {
      const skip = Math.max(0, position - from);
      if (skip < bytes.byteLength) found.push(skip ? bytes.slice(skip) : bytes);
    }
    return { blocks: found, missing: Math.max(0, this.firstByte - position) };
  }
}
