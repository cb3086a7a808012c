"""A real conda prefix: packages built and installed by rattler, in processes of their own, without a channel
that must be reached.

py-rattler has ended with a segmentation fault after a complete install; so its exit status isn't looked at,
what it has installed is.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from environments import Made, needs

RECIPES = {
    "python": """
        context: {v: "%(minor)s", src: "${{ env.get('PY_SRC') }}"}
        package: {name: python, version: "%(version)s"}
        build:
          number: 0
          string: h0_0_cpython
          python: {site_packages_path: lib/python%(minor)s/site-packages}
          dynamic_linking: {rpath_allowlist: ["**"], missing_dso_allowlist: ["**"]}
          script:
            - mkdir -p $PREFIX/bin $PREFIX/lib && cp -a ${{ src }}/bin/python${{ v }} $PREFIX/bin/ && ln -s python${{ v }} $PREFIX/bin/python3 && ln -s python${{ v }} $PREFIX/bin/python
            - cp -a ${{ src }}/lib/libpython${{ v }}.so* $PREFIX/lib/ && cp -a ${{ src }}/lib/python${{ v }} $PREFIX/lib/
            - cd $PREFIX/lib/python${{ v }} && rm -rf site-packages/* test idlelib ensurepip config-* && find . -name __pycache__ -prune -exec rm -rf {} + && find . -type d -name tests -prune -exec rm -rf {} + && echo conda > site-packages/README.txt
            - patchelf --set-rpath "$PREFIX/lib" $PREFIX/bin/python${{ v }}
            - grep -rlI "${{ src }}" $PREFIX/lib $PREFIX/bin | xargs -r sed -i "s#${{ src }}#$PREFIX#g"
        about: {license: PSF-2.0}
        """,  # noqa: E501
    "prefixdemo": """
        package: {name: prefixdemo, version: "1.0"}
        build:
          number: 0
          script:
            - mkdir -p $PREFIX/bin $PREFIX/etc $PREFIX/lib
            - printf '#include <stdio.h>\\nconst char*p(){static const char s[]="%%s/etc/prefixdemo.conf";return s;}\\n' "$PREFIX" > d.c && gcc -shared -fPIC -O1 -o $PREFIX/lib/libprefixdemo.so d.c
            - printf '#include <stdio.h>\\nextern const char*p();int main(){printf("binary says %%%%s len=%%%%zu\\\\n",p(),__builtin_strlen(p()));FILE*f=fopen(p(),"r");char b[4096]={0};if(!f){puts("OPEN FAILED");return 1;}fread(b,1,4095,f);printf("conf says %%%%s",b);return 0;}\\n' > m.c && gcc -O1 -o $PREFIX/bin/prefixdemo m.c -L$PREFIX/lib -lprefixdemo -Wl,-rpath,$PREFIX/lib
            - printf 'controller=%%s\\n' "$PREFIX" > $PREFIX/etc/prefixdemo.conf
            - printf '#!%%s/bin/python\\nimport sys; print("script of", sys.prefix)\\n' "$PREFIX" > $PREFIX/bin/prefixscript && chmod +x $PREFIX/bin/prefixscript
        requirements:
          run: [python]
        about: {license: MIT}
        """,  # noqa: E501
    "meshpure": """
        package: {name: meshpure, version: "0.1"}
        build:
          noarch: python
          number: 0
          script:
            - mkdir -p $PREFIX/lib/python%(minor)s/site-packages/meshpure && echo 'X = 1' > $PREFIX/lib/python%(minor)s/site-packages/meshpure/__init__.py
        requirements:
          run: [python]
        about: {license: MIT}
        """,  # noqa: E501
}
BUILD = """
    import asyncio, os, pathlib, sys
    import rattler_build as rb
    from rattler.index import index_fs
    channel, recipes = map(pathlib.Path, sys.argv[1:3])
    for name in ("noarch", "linux-64"):
        (channel / name).mkdir(parents=True)
    asyncio.run(index_fs(channel))
    rb.build_recipes([recipes / n / "recipe.yaml" for n in ("python", "prefixdemo", "meshpure")], channel=[channel.as_uri()],
                     output_dir=channel, test="skip", no_build_id=True, package_format="conda:1")
    asyncio.run(index_fs(channel))
"""  # noqa: E501
INSTALL = """
    import asyncio, pathlib, sys
    from rattler import Channel, install, solve
    async def main(channel, prefix, *specs):
        records = await solve([Channel(pathlib.Path(channel).as_uri())], list(specs), platforms=["linux-64", "noarch"])
        await install(records, prefix, show_progress=False)
    asyncio.run(main(*sys.argv[1:]))
"""  # noqa: E501


def missing_for_conda() -> str:
    """Return what isn't there; empty if a conda prefix can be made."""
    missing = [name for name in ("rattler", "rattler_build") if importlib.util.find_spec(name) is None]
    found = needs("gcc", "patchelf")
    everything = ", ".join([*missing, *([found] if found else [])])
    return f"not here: {everything} (pip install py-rattler py-rattler-build patchelf)" if everything else ""


def make_conda(folder: Path) -> Made:
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name, text in RECIPES.items():
        (folder / "recipes" / name).mkdir(parents=True)
        text = textwrap.dedent(text) % {"minor": minor, "version": ".".join(map(str, sys.version_info[:3]))}
        (folder / "recipes" / name / "recipe.yaml").write_text(text)
    env = {**os.environ, "PY_SRC": sys.base_prefix, "RATTLER_CACHE_DIR": str(folder / "cache")}
    channel, prefix = folder / "channel", folder / "conda"
    for program, arguments in (
        (BUILD, [channel, folder / "recipes"]),
        (INSTALL, [channel, prefix, "prefixdemo", "meshpure"]),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
            capture_output=True,
            text=True,
            env=env,
        )
    assert list((prefix / "conda-meta").glob("meshpure-*.json")), ended.stderr
    return Made(prefix)
