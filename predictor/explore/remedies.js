// What would make a setting fit: other choices of the page's own controls, each judged as any setting is.

/** Changes that save memory: words, and the settings to judge, of which the first that fits counts. */
function changesOf(data, setting) {
  const engine = engineOf(data, setting), world = setting.degree * engine.tensor, found = [];
  const add = (words, settings) => settings.length && found.push({words, settings});
  if (data.first.checkpointing && !setting.checkpointing)
    add(() => "gradient_checkpointing", [{...setting, checkpointing: true}]);
  for (const other of data.engines)
    if (other !== engine && /^(zero[1-3]|fsdp2|.*-tp\d+)$/.test(other.name) && other.degrees.includes(world / other.tensor))
      add(() => `${other.label}${other.tensor > engine.tensor ? " (GPUs share samples, so a step has fewer)" : ""}`,
        [{...setting, engine: other.name, degree: world / other.tensor}]);
  if (/^(zero[1-3]|fsdp2)$/.test(engine.name))
    add(one => `data_parallel_size ${one.degree}`, engine.degrees.filter(one => one > setting.degree)
      .map(degree => ({...setting, degree})));
  add(one => `per_device_train_batch_size ${one.batch}`, halves(setting.batch).map(batch => ({...setting, batch})));
  const capacity = data.gpus.find(gpu => gpu.name === setting.gpu).capacity_bytes;
  add(one => `gpu ${one.gpu}`, data.gpus.filter(gpu => gpu.capacity_bytes > capacity)
    .sort((a, b) => a.capacity_bytes - b.capacity_bytes).map(gpu => ({...setting, gpu: gpu.name})));
  return found;
}

function halves(number) {
  const found = [];
  for (let half = Math.floor(number / 2); half >= 1; half = Math.floor(half / 2)) found.push(half);
  return found;
}

/** Judges the next setting of a change: the remedy if it surely fits, null if it does not, and others may follow. */
function judgeNext(data, {words, settings}) {
  const setting = settings.shift(), {verdict, reserved_bytes} = judged(data, setting);
  return verdict === "fits" ? {words: words(setting), setting, reserved_bytes} : null;
}
