"""From a problem to ranked plans: space, rules, evaluation, ranking. Called, it searches (``search(problem)``)."""

from autoparallel_core.hosting.callable_module import make_callable

make_callable(__name__, f"{__name__}.api:search")
