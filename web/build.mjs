// Bundles the book's browser code into the folder named on the command line.
import { readFile } from 'node:fs/promises';
import { build } from 'esbuild';

const outdir = process.argv[2] ?? 'book/static/vendor';
// Fonts that nearly every formula uses travel inside the style sheet: no late font, no layout shift.
const inline = /KaTeX_(Main-Regular|Math-Italic|AMS-Regular|Size\d-Regular)\.woff2$/;
await build({
  entryPoints: ['web/widgets.js', 'web/katex.css'], outdir,
  bundle: true, minify: true, target: 'es2020', legalComments: 'linked', assetNames: '[name]', logLevel: 'error',
  loader: { '.woff2': 'file', '.woff': 'empty', '.ttf': 'empty' },
  plugins: [{ name: 'inline-fonts', setup(b) {
    b.onLoad({ filter: inline }, async ({ path }) => ({ contents: await readFile(path), loader: 'dataurl' }));
  } }],
});
