"""Sphinx's configuration of the docs site; `tests.site.build` calls it."""

project = "Baton"
html_title = "Baton"
root_doc = "README"

extensions = ["myst_parser"]
myst_heading_anchors = 4  # `page.md#heading`, spelt as code hosts do
highlight_language = "none"
smartquotes = False  # what is written stays as it is written

html_theme = "furo"  # brings its styles and scripts along, and uses the reader's own fonts
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_use_index = False
