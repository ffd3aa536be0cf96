// The weights of one moment of training: fetched when asked for, unpacked, put in their places.

/** Return what model.js calls a model: its sizes, and its weights by name. */
export function modelFrom({ sizes, shapes }, numbers) {
  const weights = {};
  let start = 0;
  for (const [name, shape] of Object.entries(shapes)) {
    const data = numbers.subarray(start, start += shape.reduce((a, b) => a * b));
    const short = name.replace('blocks.', '').replace('.weight', '').replace(/W_(\d)\.bias/, 'b_$1');
    weights[short] = shape.length > 1 ? { data, shape } : data;
  }
  if (start !== numbers.length) throw new Error(`the file holds ${numbers.length} numbers, not ${start}`);
  return { sizes, weights };
}

/** Unpack what book/tools/living.py packed: base64, gzip, low bytes before high bytes, float16. */
export async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const planes = new Uint8Array(await new Response(plain).arrayBuffer()), n = planes.length / 2;
  return new Float64Array(n).map((_, i) => half(planes[i] | planes[n + i] << 8));
}

function half(bits) {
  const exponent = bits >> 10 & 31, fraction = bits & 1023;
  const size = exponent ? (1 + fraction / 1024) * 2 ** (exponent - 15) : fraction * 2 ** -24;
  return bits >> 15 ? -size : size;
}

/**
 * Return the packed text of a moment. A page from the disk may not fetch, but may add a script; from
 * a server the same file is fetched, since only then it can be said how much has come.
 */
export function packed(step, where, onProgress) {
  const file = `${where}step-${step}.js`;
  return location.protocol === 'file:' ? byScript(step, file) : byFetch(file, onProgress);
}

const arrived = new Map();

function byScript(step, file) {
  livingModel.take = (taken, text) => arrived.set(taken, text);
  return new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement('script'), { src: file });
    script.onload = () => {
      script.remove();
      if (arrived.has(step)) resolve(arrived.get(step));
      else reject(new Error('the file is cut short'));
      arrived.delete(step);
    };
    script.onerror = () => { script.remove(); reject(new Error('the file is not there')); };
    document.head.append(script);
  });
}

async function byFetch(file, onProgress) {
  const answer = await fetch(file);
  if (!answer.ok) throw new Error(`the server says ${answer.status}`);
  const reader = answer.body.getReader(), decoder = new TextDecoder();
  let text = '';
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += decoder.decode(part.value, { stream: true });
    onProgress(text.length);
  }
  const found = /"([^"]+)"\);/.exec(text);
  if (!found) throw new Error('the file is cut short');
  return found[1];
}
