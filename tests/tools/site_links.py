"""site_links.py -- mkdocs' hook (mkdocs.yml): links of docs/ to files beside it work on the site, and no link is broken.

A linked file of the source tree is copied to source/ of the site; a link to a folder becomes plain text.  After the build
every relative link of every page must lead to a file of the site.
"""
import os
import pathlib
import re
import shutil

from mkdocs.exceptions import PluginError

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINK = re.compile(r'<a href="((?:\.\./)+[^"#]+)(#[^"]*)?">(.*?)</a>', re.S)
copied = set()


def on_page_content(html, page, config, files):
    here = ROOT / "docs" / pathlib.Path(page.file.src_uri).parent

    def moved(m):
        target = pathlib.Path(os.path.normpath(here / m[1]))
        if target.is_relative_to(ROOT / "docs") or not target.is_relative_to(ROOT):
            return m[0]
        if target.is_dir():
            return m[3]
        name = target.relative_to(ROOT)
        if not target.is_file():
            return m[0]  # on_post_build() names it
        copied.add(name)
        up = "../" * page.file.dest_uri.count("/")
        return f'<a href="{up}source/{name}">{m[3]}</a>'
    return LINK.sub(moved, html)


def on_post_build(config):
    site = pathlib.Path(config["site_dir"])
    for name in copied:
        (site / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, site / "source" / name)
    broken = []
    for page in site.rglob("*.html"):
        for href in re.findall(r'href="([^"#?]+)', page.read_text()) if page.name != "404.html" else ():
            if not re.match(r"[a-z]+:|/", href) and not (page.parent / href).exists():
                broken.append(f"{page.relative_to(site)}: {href}")
    if broken:
        raise PluginError("links lead nowhere: " + "; ".join(sorted(broken)))
