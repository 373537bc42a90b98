// The page's columns, and composed runs put together from them (predictor/explore/columns.py, packing.py).

/** The page's data with its columns (content.py). */
function open(data, bytes) {
  const columns = data.ends.map((end, number) => [number ? data.ends[number - 1] : 0, end]);
  const decoded = new Map();
  data.column = number => {
    if (!decoded.has(number)) decoded.set(number, decode(bytes, ...columns[number]));
    return decoded.get(number);
  };
  data.made = data.made.map(data.column);
  data.composed = new Map();
  for (const formula of data.formulas) formula.list = tracedList(data, formula.traced);
  return data;
}

function decode(bytes, start, end) {
  let count = 0;
  for (let at = start; at < end; at++) if (bytes[at] < 128) count++;
  const values = new Float64Array(count);
  for (let at = start, place = 0; at < end; place++) {
    let value = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      value += (byte % 128) * scale;
      scale *= 128;
    } while (byte >= 128);
    values[place] = value % 2 ? -(value + 1) / 2 : value / 2;
  }
  return values;
}

function summed(column) {
  const result = Float64Array.from(column);
  for (let at = 1; at < result.length; at++) result[at] += result[at - 1];
  return result;
}

/** The traced list, its buffers numbered by when they first live. */
function tracedList(data, traced) {
  const what = data.column(traced.what), kind = new Int8Array(what.length), buffer = new Int32Array(what.length);
  let born = 0;
  for (let at = 0; at < what.length; at++) {
    kind[at] = what[at] ? -1 : 1;
    buffer[at] = what[at] ? born - what[at] : born++;
  }
  return {
    kind, buffer, moment: summed(data.column(traced.moment)), size: data.column(traced.size),
    stream: data.column(traced.stream), factor: data.column(traced.factor),
    module: summed(data.column(traced.module)), operator: data.column(traced.operator), buffers: born,
    stays: flags(born, data.column(traced.persistent)),
  };
}

function flags(count, places) {
  const found = new Uint8Array(count);
  for (const place of places) found[place] = 1;
  return found;
}

/**
 * The events of one rank. Of a run: kind, buffer, moment, step by event; stream, factor, module, operator, and either
 * `size` (a row of the formula's sizes) or `bytes` (where size is -1) by buffer. `instances`: micro-steps laid out.
 */
function compose(data, formula, start, steps, instances) {
  const {list} = formula, rows = [start, steps].map(numbers => {
    const [take, kind, owner, argument, when] = numbers.map(data.column);
    return {take, kind, owner, argument, when};
  });
  const plain = list.kind.length, stay = list.buffer.reduce((count, buffer) => count + list.stays[buffer], 0);
  const tracedEvents = plain + (instances - 1) * (plain - stay);
  const ownEvents = rows.reduce((n, part) => n + part.kind.length, 0);
  const ownBuffers = rows.reduce((n, part) => n + part.kind.reduce((m, kind, at) =>
    m + (kind === 1 && part.owner[at] === 0 ? 1 : 0), 0), 0);
  const count = tracedEvents + ownEvents, first = instances * list.buffers, buffers = first + ownBuffers;
  const run = {
    kind: new Int8Array(count), buffer: new Int32Array(count), moment: new Int8Array(count), step: new Int8Array(count),
    buffers, size: new Int32Array(buffers).fill(-1), bytes: new Float64Array(buffers), stream: new Int8Array(buffers),
    factor: new Int8Array(buffers), module: new Int32Array(buffers), operator: new Int32Array(buffers),
  };
  for (let instance = 0; instance < instances; instance++) {
    const shift = instance * list.buffers;
    for (let at = 0; at < list.buffers; at++) run.size[shift + at] = list.size[at];
    for (const name of ["stream", "factor", "module", "operator"]) run[name].set(list[name], shift);
  }
  const [size, stream, factor, module, operator] = data.made;
  const step = instances / 3; // micro-steps of an optimizer step
  let place = 0, instance = 0, at = 0, own = first;
  const trace = number => {
    for (; number > 0; at++) {
      if (at === plain) {
        at = 0;
        instance += 1;
      }
      if (instance && list.stays[list.buffer[at]]) continue;
      run.kind[place] = list.kind[at];
      run.buffer[place] = instance * list.buffers + list.buffer[at];
      run.moment[place] = list.moment[at];
      run.step[place++] = 1 + Math.floor(instance / step);
      number -= 1;
    }
  };
  for (const part of rows) {
    let when = 0;
    for (let row = 0; row < part.kind.length; row++) {
      trace(part.take[row]);
      const kind = part.kind[row], argument = part.argument[row], whose = part.owner[row];
      when += part.when[row];
      run.kind[place] = kind;
      run.moment[place] = Math.floor(when / 8);
      run.step[place] = when % 8;
      if (kind === 1 && whose === 0) {
        run.buffer[place] = own;
        run.bytes[own] = size[argument];
        run.stream[own] = stream[argument];
        run.factor[own] = factor[argument];
        run.module[own] = module[argument];
        run.operator[own++] = operator[argument];
      } else if (kind !== 2 && kind !== 3)
        run.buffer[place] = whose === 0 ? own - argument : (whose - 1) * list.buffers + argument;
      place += 1;
    }
  }
  trace(tracedEvents - (place - ownEvents));
  return run;
}
