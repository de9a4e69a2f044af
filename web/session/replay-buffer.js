// A bounded buffer of sent audio that the server has not confirmed yet, for sending again after a lost connection.

export class ReplayBuffer {
  constructor(limitBytes) {
    this.limitBytes = limitBytes;
    this.blocks = []; // contiguous {from, bytes}
    this.firstByte = 0; // stream position of the first buffered byte
    this.endByte = 0; // bytes added in total
    this.droppedBytes = 0; // dropped at the limit before they were confirmed
  }

  add(bytes) {
    this.blocks.push({ from: this.endByte, bytes });
    this.endByte += bytes.byteLength;
    while (this.endByte - this.firstByte > this.limitBytes) {
      this.droppedBytes += this.blocks[0].bytes.byteLength;
      this.dropFirst();
    }
  }

  // Drops all blocks that end at or before this position.
  confirm(position) {
    while (this.blocks.length && this.blocks[0].from + this.blocks[0].bytes.byteLength <= position) this.dropFirst();
  }

  dropFirst() {
    const block = this.blocks.shift();
    this.firstByte = block.from + block.bytes.byteLength;
  }

  // Everything from this position on, oldest first. `missing` is the number of bytes that are no longer buffered.
  from(position) {
    const blocks = [];
    for (const { from, bytes } of this.blocks) {
      const skip = Math.max(0, position - from);
      if (skip < bytes.byteLength) blocks.push(skip ? bytes.slice(skip) : bytes);
    }
    return { blocks, missing: Math.max(0, this.firstByte - position) };
  }
}
