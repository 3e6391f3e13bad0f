"""The search for allocation candidates: which providers can together give what a query asks for?

These words have one meaning in the whole package:

    slot              a part of a query that one provider must give: a group with a suffix, or one class of the group without
    place             a provider in the search of one tree, by its number: first the tree from the root down, then its pools
    to suit           said of a provider and a group: it meets all conditions (traits, aggregates, tree) but the amounts
    to fit            said of a provider and a slot: it suits the slot's group and has room for the slot's amounts
    domain            the places that fit a slot
    layout            which place is the parent of which; trees of one layout are the lines of one table
    class of trees    trees of one layout that the query cannot tell apart
    solution          a place for each slot; it is one candidate in each tree of its class
    packing           a resource class that several slots may take from one provider: what they take, and the room for them
    pattern           what many candidates have in common: which amounts, of which groups, come from one provider
    block             candidates of one pattern as a table: one line a candidate, one column a provider
    worth             the weight of the preferred traits that a provider has

`query` says what may be asked. `provider_index` holds all providers in `columns`, and all trees by their layouts. A search
first finds the providers that suit and fit, and groups the trees in classes (`suitable`). It states one problem for each class
(`slots`), and solves it (`slot_solver`). The solutions become candidates. `search` does this for queries to placement; `ways` searches the hosts of a
scheduler. `budget` limits the cost of a search.
"""
