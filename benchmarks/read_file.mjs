// Loads a model in ONNX Runtime Web (WebAssembly, one thread, the highest level), runs it, and leaves its outputs.
//
// node read_file.mjs MODEL.onnx FOLDER RUNS, where onnxruntime-web is found from the working directory. FOLDER has feeds.json, a
// list of {name, type, dims, file}, and gets outputs.json, of the same form, with the version and the least CPU time, in seconds.

import fs from 'node:fs';
import path from 'node:path';
import { createRequire } from 'node:module';

const require = createRequire(path.join(process.cwd(), 'package.json'));
const ort = require('onnxruntime-web');
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, int64: BigInt64Array, uint64: BigUint64Array,
  int32: Int32Array, uint32: Uint32Array, int16: Int16Array, uint16: Uint16Array, int8: Int8Array, uint8: Uint8Array,
  bool: Uint8Array,
};

const [model, folder, runs] = process.argv.slice(2);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = 'fatal';
const feeds = {};
for (const { name, type, dims, file } of JSON.parse(fs.readFileSync(path.join(folder, 'feeds.json'), 'utf8'))) {
  const bytes = new Uint8Array(fs.readFileSync(file));
  feeds[name] = new ort.Tensor(type, new ARRAYS[type](bytes.buffer), dims);
}
const { dir, name: stem, base } = path.parse(model);
const externalData = fs.readdirSync(dir).filter((file) => file.startsWith(`${stem}.`) && file !== base && !file.endsWith('.npz'))
  .map((file) => ({ path: file, data: new Uint8Array(fs.readFileSync(path.join(dir, file))) }));
const options = { graphOptimizationLevel: 'all', externalData };
const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync(model)), options);
const found = await session.run(feeds);
const outputs = session.outputNames.map((name, k) => {
  const { type, dims, data } = found[name];
  const file = path.join(folder, `output${k}`);
  fs.writeFileSync(file, new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return { name, type, dims, file };
});
let least = Infinity;
for (let k = 0; k < Number(runs); k++) {
  const start = process.cpuUsage();
  await session.run(feeds);
  const { user, system } = process.cpuUsage(start);
  least = Math.min(least, (user + system) / 1e6);
}
fs.writeFileSync(path.join(folder, 'outputs.json'), JSON.stringify({ version: ort.env.versions.common, seconds: least, outputs }));
process.exit(0);
