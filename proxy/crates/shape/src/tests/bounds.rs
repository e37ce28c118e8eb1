//! Tests of the limits: the shape of a large command lacks the parts beyond a limit.

use bson::{Bson, Document, doc};

use super::{described, filter_shape, hashed, shape};

/// A name without digits, so that it does not count as data: `aa`, `ab` and so on.
fn name(number: u8) -> String {
    [number / 26, number % 26]
        .map(|letter| char::from(b'a' + letter))
        .iter()
        .collect()
}

fn names(count: u8) -> impl Iterator<Item = String> {
    (0..count).map(name)
}

fn pipeline_shape(stages: Vec<Bson>) -> String {
    shape(&doc! { "aggregate": "c", "pipeline": stages, "$db": "d" })
}

#[test]
fn filters_deeper_than_the_limit_are_cut() {
    // Filters are at the depths 1, 3, 5 and so on. The seventeenth filter is cut, because its depth
    // of 33 exceeds the limit of 32.
    let nested = |levels| {
        (0..levels).fold(
            doc! { "x": 1 },
            |filter, _| doc! { "a": { "$elemMatch": filter } },
        )
    };
    let printed = |inner: &str, levels| {
        (0..levels).fold(inner.to_owned(), |filter, _| {
            format!("{{a:{{$elemMatch:{filter}}}}}")
        })
    };
    assert_eq!(filter_shape(nested(15)), printed("{x:?}", 15));
    assert_eq!(filter_shape(nested(16)), printed("...", 16));
    assert_eq!(filter_shape(nested(40)), printed("...", 16));
}

#[test]
fn parts_of_a_command_that_are_nested_too_deeply_are_printed_as_dots() {
    let not = (0..40).fold(doc! { "$gt": 1 }, |operators, _| doc! { "$not": operators });
    let printed = (0..31).fold("...".to_owned(), |inner, _| format!("{{$not:{inner}}}"));
    assert_eq!(filter_shape(doc! { "a": not }), format!("{{a:{printed}}}"));

    let sum = (0..40).fold(Bson::from("$x"), |inner, _| {
        Bson::from(doc! { "$abs": inner })
    });
    let printed = (0..31).fold("...".to_owned(), |inner, _| format!("{{$abs:{inner}}}"));
    assert_eq!(
        filter_shape(doc! { "$expr": sum }),
        format!("{{$expr:{printed}}}")
    );

    let facets = (0..20).fold(vec![Bson::Int32(1)], |inner, _| {
        vec![Bson::from(doc! { "$facet": { "f": inner } })]
    });
    // Pipelines are at the depths 1, 4, 7 and so on, and the arguments of their stages are two
    // levels deeper. In the eleventh pipeline, the depth of the argument is 33, over the limit.
    let last = "[{$facet:...}]".to_owned();
    let printed = (0..10).fold(last, |inner, _| format!("[{{$facet:{{f:{inner}}}}}]"));
    assert_eq!(pipeline_shape(facets), format!("{{pipeline:{printed}}}"));

    let and = (0..40).fold(doc! { "x": 1 }, |filter, _| doc! { "$and": [filter] });
    assert_eq!(filter_shape(and), "{$and:...}");

    let explain = (0..40).fold(doc! { "ping": 1 }, |command, _| doc! { "explain": command });
    let printed = (0..32).fold("...".to_owned(), |inner, _| format!("{{explain:{inner}}}"));
    assert_eq!(shape(&explain), printed);
}

#[test]
fn filters_and_projections_with_too_many_entries_are_printed_as_dots() {
    let fields = |count| {
        names(count)
            .map(|name| (name, Bson::Int32(1)))
            .collect::<Document>()
    };
    let find = |clause: &str, document| doc! { "find": "c", clause: document, "$db": "d" };
    assert_eq!(filter_shape(fields(64)).matches(":?").count(), 64);
    assert_eq!(filter_shape(fields(65)), "{...}");
    assert_eq!(shape(&find("projection", fields(65))), "{projection:{...}}");
    assert_eq!(described(&find("projection", fields(65))).coarse, "{}");
    // A sort is a sequence and not a set, so this limit does not apply to it.
    assert_eq!(shape(&find("sort", fields(65))).matches(":1").count(), 65);

    // In a filter, the limit applies to conjuncts and not to paths: 33 paths with two operators
    // each are 66 conjuncts.
    let ranges = |count| -> Document {
        names(count)
            .map(|name| (name, Bson::from(doc! { "$gt": 1, "$lt": 2 })))
            .collect()
    };
    assert_eq!(filter_shape(ranges(32)).matches("$gt").count(), 32);
    assert_eq!(filter_shape(ranges(33)), "{...}");

    // Equal conjuncts count once.
    let equal: Vec<Document> = (0..60)
        .map(|_| doc! { "a": 1, "b": { "$gt": 1 } })
        .collect();
    assert_eq!(filter_shape(doc! { "$and": equal }), "{a:?,b:{$gt:?}}");
}

#[test]
fn elements_and_fields_beyond_the_limit_are_not_read() {
    let branches = |count: u8| -> Vec<Document> {
        (0..count)
            .map(|number| doc! { if number < 64 { "a" } else { "b" }: 1 })
            .collect()
    };
    assert_eq!(filter_shape(doc! { "$or": branches(65) }), "{$or:[{a:?}]}");
    assert_eq!(filter_shape(doc! { "$and": branches(65) }), "{a:?}");

    let stages = |count: usize| vec![Bson::from(doc! { "$limit": 1 }); count];
    assert!(pipeline_shape(stages(64)).ends_with("{$limit:?}]}"));
    assert!(pipeline_shape(stages(65)).ends_with("{$limit:?},...]}"));

    let keys = |count: usize| -> Document {
        (0..count)
            .map(|number| (letters(number), Bson::Int32(1)))
            .collect()
    };
    let hint = |count| doc! { "find": "c", "hint": keys(count), "limit": 5 };
    assert!(!shape(&hint(256)).contains("..."));
    assert_ne!(hashed(&hint(256)), hashed(&hint(257)));
    assert_eq!(hashed(&hint(257)), hashed(&hint(258)));

    // The first 256 names are all printed as `a.*`. The last name, `z`, is not read, because it is
    // beyond the limit of 256 fields.
    let alike = (0..256).map(|number| format!("a.{number}"));
    let wide = alike
        .chain(["z".to_owned()])
        .map(|name| (name, Bson::Int32(1)));
    assert_eq!(filter_shape(wide.collect()), "{a.*:?}");
}

/// The number with a letter in place of each digit, because digits in a name can count as data.
fn letters(number: usize) -> String {
    number
        .to_string()
        .bytes()
        .map(|digit| char::from(digit - b'0' + b'a'))
        .collect()
}

#[test]
fn statements_beyond_the_limit_are_not_read() {
    let statement = |name: String| doc! { "q": { name: 1 }, "limit": 1 };
    let delete = |statements: Vec<Document>| {
        shape(&doc! { "delete": "c", "deletes": statements, "$db": "d" })
    };
    assert_eq!(
        delete(names(4).map(statement).collect())
            .matches("filter")
            .count(),
        4
    );
    assert_eq!(delete(names(5).map(statement).collect()), "{deletes:[...]}");
    let mut same = vec![statement("a".to_owned()); 16];
    same.push(statement("b".to_owned()));
    assert_eq!(delete(same), "{deletes:[{filter:{a:?}}]}");
}

/// A *fine shape* has all parts of a shape. A *coarse shape* lacks the parts that do not select
/// documents. So these statements differ in their fine shapes and are equal in their coarse shapes.
#[test]
fn fine_and_coarse_shapes_have_separate_limits_on_the_number_of_different_statements() {
    let statements: Vec<Document> = names(5)
        .map(|name| doc! { "q": { "a": 1 }, "u": { "$set": { name: 1 } } })
        .collect();
    let text = described(&doc! { "update": "c", "updates": statements, "$db": "d" });
    assert_eq!(text.shape, "{updates:[...]}");
    assert_eq!(
        text.coarse,
        "{updates:[{filter:{a:?},update:{$set:{...}}}]}"
    );
}

#[test]
fn a_command_with_too_many_fields_and_elements_is_printed_as_dots() {
    let branch = |first: u8| -> Document {
        (0..63)
            .map(|number| (name(first) + &name(number), Bson::Int32(1)))
            .collect()
    };
    let filter = |branches: u8| doc! { "$or": (0..branches).map(branch).collect::<Vec<_>>() };
    let spent = doc! { "find": "c", "filter": { "$and": [filter(64), filter(64)] }, "$db": "d" };
    let text = described(&spent);
    assert_eq!(
        (text.shape.as_str(), text.coarse.as_str()),
        ("{...}", "{...}")
    );
    let whole = doc! { "find": "c", "filter": filter(60), "$db": "d" };
    assert_ne!(described(&whole).shape, "{...}");
    let (fine, coarse) = hashed(&spent);
    assert_eq!(fine, coarse);
}

#[test]
fn a_long_shape_text_is_cut_but_the_hash_covers_the_whole_shape() {
    let long = |last: &str| {
        let names = (0..63).map(|number| name(number) + &"é".repeat(31));
        let names = names.chain([format!("zz{last}")]);
        let filter: Document = names.map(|name| (name, Bson::Int32(1))).collect();
        doc! { "find": "c", "filter": filter, "$db": "d" }
    };
    let (left, right) = (described(&long("l")), described(&long("r")));
    assert_eq!(left.shape, right.shape);
    assert!(
        (4090..=4096).contains(&left.shape.len()),
        "{}",
        left.shape.len()
    );
    assert!(left.shape.ends_with("..."));
    assert_ne!(hashed(&long("l")), hashed(&long("r")));
}

#[test]
fn a_shape_text_with_a_very_long_field_name_is_cut() {
    let long = ["a\u{1}"; 100_000].join(".");
    let operators = names(60).map(|name| (format!("${name}"), Bson::Int32(1)));
    let filter = doc! { &long: operators.collect::<Document>() };
    let text = shape(&doc! { "find": "c", "filter": filter, "$db": "d" });
    let expected = format!("{{filter:{{\"{}", "a\\u0001.".repeat(1_000));
    assert_eq!(text, expected[..4_093].to_owned() + "...");
}
