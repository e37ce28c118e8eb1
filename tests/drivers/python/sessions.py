"""Sessions, transactions and change streams."""

from pymongo.read_concern import ReadConcern

from outcome import step


def causal_and_snapshot(db):
    things = db.things

    def causal():
        with db.client.start_session(causal_consistency=True) as session:
            things.insert_one({"_id": "causal"}, session=session)
            majority = things.with_options(read_concern=ReadConcern("majority"))
            return [majority.find_one({"_id": "causal"}, session=session), session.operation_time is not None]

    def snapshot():
        with db.client.start_session(snapshot=True) as session:
            before = things.find_one({"_id": 3}, session=session)
            things.update_one({"_id": 3}, {"$set": {"snapshot": "changed"}})
            return [before, things.find_one({"_id": 3}, session=session), things.find_one({"_id": 3})]

    step("session causal", causal)
    step("session snapshot", snapshot)


def transactions(db):
    things = db.things
    client = db.client

    def commit():
        with client.start_session() as session:
            with session.start_transaction():
                things.insert_one({"_id": "t1"}, session=session)
                things.update_one({"_id": "t1"}, {"$set": {"x": 2}}, session=session)
            return things.find_one({"_id": "t1"}, session=session)

    def abort():
        with client.start_session() as session:
            session.start_transaction()
            things.insert_one({"_id": "t2"}, session=session)
            inside = things.find_one({"_id": "t2"}, session=session)
            session.abort_transaction()
            return [inside, things.find_one({"_id": "t2"})]

    def callback():
        with client.start_session() as session:
            session.with_transaction(lambda inner: things.insert_one({"_id": "t3"}, session=inner))
            return things.find_one({"_id": "t3"}, session=session)

    step("transaction commit", commit)
    step("transaction abort", abort)
    step("transaction callback", callback)
    with client.start_session() as first, client.start_session() as second:
        conflict(things, first, second)


def conflict(things, first, second):
    def begun(session, value):
        session.start_transaction()
        return things.update_one({"_id": "t1"}, {"$set": {"x": value}}, session=session).modified_count

    def again():
        count = begun(second, "second")
        second.commit_transaction()
        return [count, things.find_one({"_id": "t1"})]

    def after_abort():
        second.start_transaction()
        things.insert_one({"_id": "t4"}, session=second)
        second.abort_transaction()
        return things.find_one({"_id": "t4"}, session=second)

    step("transaction first", lambda: begun(first, "first"))
    step("transaction conflict", lambda: begun(second, "second"))
    step("transaction conflict aborted", lambda: second.abort_transaction())
    step("transaction first commit", lambda: first.commit_transaction())
    step("transaction again", again)
    step("transaction after abort", after_abort)


def change_stream(db):
    watched = db.watched

    def changed():
        watched.insert_one({"_id": 1})
        watched.update_one({"_id": 1}, {"$set": {"a": 1}})
        watched.delete_one({"_id": 1})

    tokens = []

    def seen():
        with watched.watch(max_await_time_ms=5000) as stream:
            changed()
            events = [next(stream) for _ in range(3)]
            tokens.extend(event["_id"] for event in events)
            return events

    def resumed():
        with watched.watch(resume_after=tokens[1], max_await_time_ms=5000) as stream:
            return next(stream)

    step("change stream", seen)
    if tokens:
        step("change stream resumed", resumed)
