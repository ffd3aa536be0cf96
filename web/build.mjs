// Bundles the book's browser code into the folder named on the command line.
import { readFile } from 'node:fs/promises';
import { build } from 'esbuild';

const outdir = process.argv[2] ?? 'book/static/vendor';
const options = { bundle: true, minify: true, target: 'es2020', legalComments: 'linked', logLevel: 'error' };
// Fonts that nearly every formula uses travel inside the style sheet: no late font, no layout shift.
const inline = /KaTeX_(Main-Regular|Math-Italic|AMS-Regular|Size\d-Regular)\.woff2$/;
await build({
  ...options, entryPoints: ['web/widgets.js', 'web/katex.css', 'web/play.js', 'web/play.css'], outdir,
  assetNames: '[name]',
  loader: { '.woff2': 'file', '.woff': 'empty', '.ttf': 'empty' },
  plugins: [{ name: 'inline-fonts', setup(b) {
    b.onLoad({ filter: inline }, async ({ path }) => ({ contents: await readFile(path), loader: 'dataurl' }));
  } }, { name: 'worker-as-text', setup(b) { // a page from the disk may start a worker from its own text only
    b.onLoad({ filter: /play[\\/]worker\.js$/ }, async ({ path }) => {
      const { outputFiles } = await build({ ...options, legalComments: 'none', entryPoints: [path], write: false, format: 'iife' });
      return { contents: outputFiles[0].text, loader: 'text' };
    });
  } }],
});
