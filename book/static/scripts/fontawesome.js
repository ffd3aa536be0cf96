/* The icons come from the web font; the theme's 1.5 MB script that would redraw them as SVG is not needed. */
