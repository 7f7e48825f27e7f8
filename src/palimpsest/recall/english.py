"""English words that rules do not cover: irregular forms, and words that make up a question but not its topic. Pure."""

from __future__ import annotations

_FORMS = """
arise arose arisen; awake awoke awoken; bear bore borne; beat beaten; become became; begin began begun; bend bent;
bite bitten; bleed bled; blow blew blown; break broke broken; breed bred; bring brought;
build built; burn burnt; buy bought; catch caught; choose chose chosen; cling clung; come came; creep crept; deal dealt;
dig dug; do does did done; draw drew drawn; dream dreamt; drink drank drunk; drive drove driven; eat ate eaten;
fall fell fallen; feed fed; feel felt; fight fought; find found; flee fled; fly flew flown; forbid forbade forbidden;
forget forgot forgotten; forgive forgave forgiven; freeze froze frozen; get got gotten; give gave given;
go went gone; grow
grew grown; hang hung; have had has; hear heard; hide hid hidden; hold held; keep kept; kneel knelt; know knew known;
lay laid; lead led; lean leant; leap leapt; learn learnt; leave left; lend lent; light lit; lose lost; make made; mean
meant; meet met; pay paid; prove proven; ride rode ridden; ring rang rung; rise risen; run ran; say said; see saw
seen; seek sought; sell sold; send sent; sew sewn; shake shook shaken; shine shone; shoot shot; show shown; shrink
shrank shrunk; sing sang sung; sink sank sunk; sit sat; sleep slept; slide slid; speak spoke spoken; speed sped; spell
spelt; spend spent; spill spilt; spin spun; spring sprang sprung; stand stood; steal stole stolen; stick stuck; sting
stung; stink stank stunk; stride strode; strike struck stricken; swear swore sworn; sweep swept; swell swollen; swim
swam swum; swing swung; take took taken; teach taught; tear tore torn; tell told; think thought; throw threw thrown;
understand understood; wake woke woken; wear wore worn; weave wove woven; weep wept; win won; write wrote
written; withdraw withdrew withdrawn; undergo underwent undergone; rewrite rewrote rewritten; overcome overcame;
rebuild rebuilt; mistake mistook mistaken;
child children; man men; woman women; foot feet; tooth teeth; mouse mice; goose geese; wife wives; knife
knives; shelf shelves; half halves; he his; wolf wolves; index indices; matrix matrices; vertex vertices;
analysis analyses; crisis crises; hypothesis hypotheses; criterion criteria; phenomenon phenomena
"""

FORMS: dict[str, str] = {form: forms[0] for line in _FORMS.split(";") if (forms := line.split()) for form in forms[1:]}
"""The base form of each irregular form, both in lower case."""

NOT_INDEXED = frozenset(
    "a an and are as at be for have i in is it of on that the this to was with you".split()  # noqa: SIM905
)
"""Words that no index holds: half of all that is said consists of them, and searches without them find better."""

_ASKING = """
a about actually all also am an and any anybody anyone anything are aren as asked at be because been being both but by
ca can could did do does doing during each either ever for from give had has have he hello her hers hey hi him
his how i if in into is isn it its itself just kind kinds know let many me mean mention mentioned might mine more most
much must my myself name of often on once one ones or our ours out over please recall remember remind said same say
says she should so some somebody someone something such tell than that the their theirs them then there these they
thing things this those through time times to told too type types up us very was we were what when where whether which
while who whom whose why will with within wo would you your yours
"""

QUESTION_WORDS = frozenset(_ASKING.split())
"""Words that phrase a question but do not say what it is about. They are left out of a search, unless nothing would
remain."""
