// ipywidgets 8 core widgets on a page without a kernel. Loaded late by widgets-loader.js.
import * as base from '@jupyter-widgets/base';
import * as controls from '@jupyter-widgets/controls';
import { ManagerBase } from '@jupyter-widgets/base-manager';
import { Widget } from '@lumino/widgets';
import '@lumino/widgets/style/widget.css';
import '@jupyter-widgets/controls/css/labvariables.css';
import '@jupyter-widgets/controls/css/widgets-base.css';

// noUiSlider announces its handle as a number without a name: give it the label and the shown value.
// Its readout is a text field that a page without a kernel has no use for, and one more Tab stop.
const named = (View, text) => class extends View {
  update(options) {
    super.update(options);
    this.silence();
  }
  silence() {
    this.readout?.removeAttribute('contenteditable');
  }
  createSlider() {
    super.createSlider();
    this.silence();
    const handle = this.$slider.querySelector('.noUi-handle');
    handle.setAttribute('aria-label', this.model.get('description') || 'slider');
    const say = value => handle.setAttribute('aria-valuetext', text(this.model, Number(value)));
    this.$slider.noUiSlider.on('update', ([value]) => say(value));
    this.$slider.noUiSlider.on('set', ([value]) => say(value));
  }
};
const number = (model, value) => String(value);
const option = (model, index) => model.get('_options_labels')[Math.round(index)];
const modules = {
  '@jupyter-widgets/base': base,
  '@jupyter-widgets/controls': {
    ...controls,
    SelectionSliderView: named(controls.SelectionSliderView, option),
    IntSliderView: named(controls.IntSliderView, number),
    FloatSliderView: named(controls.FloatSliderView, number),
  },
};

class Manager extends ManagerBase {
  async loadClass(name, module) {
    const found = modules[module]?.[name];
    if (!found) throw new Error(`${name} of ${module} needs a kernel`);
    return found;
  }
  async _get_comm_info() { return {}; }
  async _create_comm() {
    const none = () => {};
    return { on_close: none, on_msg: none, close: none, send: none };
  }
}

const scripts = kind => [...document.querySelectorAll(`script[type="application/vnd.jupyter.widget-${kind}+json"]`)];

(async () => {
  const manager = new Manager();
  for (const tag of scripts('state')) await manager.set_state(JSON.parse(tag.textContent));
  for (const tag of scripts('view')) {
    const { model_id } = JSON.parse(tag.textContent);
    if (!manager.has_model(model_id)) continue;
    const view = await manager.create_view(await manager.get_model(model_id));
    const place = document.createElement('div');
    place.className = 'widget-subarea';
    await view.displayed_ready;
    // The still picture stands just before its script; the living widget takes its place in one go.
    const still = tag.previousElementSibling;
    tag.before(place);
    Widget.attach(view.luminoWidget, place);
    if (still?.classList.contains('widget-still')) still.remove();
  }
  document.documentElement.dataset.widgets = 'alive';
})();
