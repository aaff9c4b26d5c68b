// @ts-check
// The step that all views show: the newest one, or one that was chosen. It stands in the address, so that it can be linked to.

export class Moment {
  constructor(history, changed) {
    this.history = history;
    this.changed = changed;
    this.follows = true; // the newest step
    this.chosen = -1;
    this.wanted = wantedStep(); // from the address, until that step has come
    this.playing = false;
    this.rate = 10; // steps a second
    this.due = 0;
    addEventListener("hashchange", () => {
      const step = wantedStep();
      if (step !== null && step !== this.number) {
        this.wanted = step;
        this.arrived(true);
      }
    });
  }

  get column() {
    const last = this.history.length - 1;
    if (!this.follows) return Math.min(this.chosen, last);
    return last > 0 && this.history.closesQuietly ? last - 1 : last; // the closing step would show empty views
  }

  /** The step's number, as the address has it. */
  get number() {
    return this.column < 0 ? null : this.history.step[this.column];
  }

  /** More events are here, or all of them: a step that the address names may be among them. */
  arrived(all) {
    const history = this.history;
    if (this.wanted === null || history.length === 0) return;
    if (history.step[history.length - 1] < this.wanted && !all) return;
    const column = Math.max(0, history.columnOf(this.wanted));
    this.wanted = null;
    this.choose(column);
  }

  choose(column) {
    const last = this.history.length - 1;
    if (last < 0) return;
    this.wanted = null;
    this.follows = false;
    this.chosen = Math.max(0, Math.min(last, column));
    this.changed();
  }

  move(columns) {
    this.stop();
    this.choose(this.column + columns);
  }

  /** Back to the newest step, and along with it. */
  follow() {
    this.stop();
    this.wanted = null;
    this.follows = true;
    this.changed();
  }

  play() {
    if (this.history.length < 2) return;
    if (this.follows || this.column >= this.history.length - 1) this.choose(0);
    this.follows = false;
    this.chosen = this.column;
    this.playing = true;
    this.due = performance.now();
    requestAnimationFrame((now) => this.#tick(now));
    this.changed();
  }

  stop() {
    if (!this.playing) return;
    this.playing = false;
    this.changed();
  }

  #tick(now) {
    if (!this.playing) return;
    const steps = Math.floor(((now - this.due) * this.rate) / 1000);
    if (steps > 0) {
      this.due += (steps * 1000) / this.rate;
      const end = this.history.length - 1;
      this.choose(Math.min(end, this.chosen + steps));
      if (this.chosen >= end) return this.stop();
    }
    requestAnimationFrame((next) => this.#tick(next));
  }
}

function wantedStep() {
  const found = /^#step=([0-9]{1,15})$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}
