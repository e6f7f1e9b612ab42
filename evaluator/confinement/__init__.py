"""The one place for process limits: what runs a program that nobody vouches for, and all that holds it.

:mod:`.confine` starts a run and says how it ended; the :mod:`.warden` is the process that watches it, :mod:`.barriers`
what this machine can put around it (filters, Landlock rules, namespaces), which :mod:`.lockdown` installs;
:mod:`.scratch` is the run's directory.  :mod:`.fresh` starts processes of our own.
"""

from typing import TYPE_CHECKING

from knowledge_base.lazy import exports

if TYPE_CHECKING:
    from . import lockdown as lockdown
    from .barriers import Containment as Containment
    from .confine import MIB as MIB
    from .confine import Finished as Finished
    from .confine import Limits as Limits
    from .confine import containment as containment
    from .confine import packages as packages
    from .confine import prepare as prepare
    from .confine import python_child as python_child
    from .confine import run as run
    from .fresh import FreshPython as FreshPython
    from .fresh import in_short as in_short
    from .fresh import portable as portable
else:
    __getattr__, __all__ = exports(
        __name__,
        barriers=["Containment"],
        confine=["MIB", "Finished", "Limits", "containment", "packages", "prepare", "python_child", "run"],
        fresh=["FreshPython", "in_short", "portable"],
    )
