//! Builds random commands from a grammar. A sequence of bytes determines every choice, so proptest
//! can shrink a failing case. The same bytes always give the same command. The caller can request
//! the same command with other values, or with another order of the members of sets. A set is a
//! part whose order does not matter, such as the fields of a filter.

use bson::spec::BinarySubtype;
use bson::{Binary, Bson, Document, Regex, doc, oid::ObjectId};

/// A text that every generated string value contains. No name that a shape may print contains this
/// text.
pub(super) const PLANTED: &str = "tok";

/// Generates a command: takes each choice from the bytes in `choices`. `salt` changes the values in
/// the command, and `is_shuffled` changes the order of its fields and elements. Neither of the two
/// changes the shape of the command.
pub(super) struct Dice<'a> {
    choices: &'a [u8],
    /// A number from which the values are built. With another salt, the command has other values.
    pub(super) salt: u32,
    /// True to reverse the order of the members of sets.
    pub(super) is_shuffled: bool,
    depth: u32,
}

impl<'a> Dice<'a> {
    pub(super) fn new(choices: &'a [u8]) -> Self {
        Self {
            choices,
            salt: 0,
            is_shuffled: false,
            depth: 0,
        }
    }

    fn roll(&mut self, sides: u8) -> u8 {
        let Some((&choice, rest)) = self.choices.split_first() else {
            return 0;
        };
        self.choices = rest;
        choice % sides
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.roll(u8::try_from(of.len()).unwrap()))]
    }

    fn name(&mut self) -> String {
        const NAMES: [&str; 14] = [
            "a",
            "b",
            "c.d",
            "a.0",
            "a.17",
            "x_2024-01-15",
            "x_1999",
            "a b",
            "[a]",
            "a*",
            "",
            "é",
            "507f1f77bcf86cd799439011",
            "b.*.c",
        ];
        self.pick(&NAMES).to_owned()
    }

    fn planted(&self) -> String {
        format!("{PLANTED}{}", self.salt)
    }

    fn value(&mut self) -> Bson {
        let planted = self.planted();
        match self.roll(10) {
            0 => Bson::Null,
            1 => Bson::Document(doc! { &planted: { "$x": &planted } }),
            2 => Bson::Array(vec![Bson::String(planted), Bson::Null]),
            kind => self.scalar_of(kind.wrapping_add(u8::try_from(self.salt % 200).unwrap())),
        }
    }

    fn scalar(&mut self) -> Bson {
        let kind = self.roll(8);
        self.scalar_of(kind)
    }

    /// A scalar value, but never null or a regular expression, which have their own rules in
    /// filters.
    fn scalar_of(&self, kind: u8) -> Bson {
        let planted = self.planted();
        match kind % 8 {
            0 => Bson::Symbol(planted),
            1 => Bson::JavaScriptCode(planted),
            2 => Bson::Int64(self.salt.into()),
            3 => Bson::Double(self.salt.into()),
            4 => Bson::Boolean(self.salt.is_multiple_of(2)),
            5 => Bson::ObjectId(ObjectId::from_bytes([self.salt.to_le_bytes()[0]; 12])),
            6 => Bson::Binary(Binary {
                subtype: BinarySubtype::Generic,
                bytes: planted.into(),
            }),
            _ => Bson::String(planted),
        }
    }

    fn pattern(&mut self) -> String {
        let beginning = self.pick(&["", "^", "^.", "\\A"]);
        format!("{beginning}{}", self.planted())
    }

    fn regex(&mut self) -> Bson {
        let pattern = self.pattern();
        let options = self.pick(&["", "i", "m", "x"]).to_owned();
        Bson::RegularExpression(Regex {
            pattern: pattern.try_into().unwrap(),
            options: options.try_into().unwrap(),
        })
    }

    /// A document whose order of fields does not matter.
    fn set(&mut self, mut field: impl FnMut(&mut Self) -> (String, Bson)) -> Document {
        let count = self.roll(4);
        let fields: Vec<_> = (0..count).map(|_| field(self)).collect();
        // Collecting into a `Document` keeps the last value of each name. The fields are shuffled
        // only afterwards, so that each order of the fields has the same values.
        self.shuffled(fields.into_iter().collect())
    }

    fn shuffled(&self, fields: Document) -> Document {
        let mut fields: Vec<_> = fields.into_iter().collect();
        if self.is_shuffled {
            fields.reverse();
        }
        fields.into_iter().collect()
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.roll(4);
        let mut items: Vec<_> = (0..count).map(|_| item(self)).collect();
        if self.is_shuffled {
            items.reverse();
        }
        items
    }

    fn deeper<T>(&mut self, shallow: T, deep: impl FnOnce(&mut Self) -> T) -> T {
        if self.depth >= 5 {
            return shallow;
        }
        self.depth += 1;
        let made = deep(self);
        self.depth -= 1;
        made
    }

    pub(super) fn filter(&mut self) -> Document {
        self.deeper(doc! {}, |dice| {
            dice.set(|dice| match dice.roll(12) {
                0 => ("$or".into(), dice.list(Self::filter).into()),
                1 => ("$nor".into(), dice.list(Self::filter).into()),
                2 => ("$and".into(), dice.list(Self::filter).into()),
                3 => ("$expr".into(), dice.expression()),
                4 => ("$comment".into(), dice.value()),
                5 => ("$text".into(), doc! { "$search": dice.planted() }.into()),
                6 => (dice.name(), dice.regex()),
                7..=9 => (dice.name(), dice.operators().into()),
                _ => (dice.name(), dice.value()),
            })
        })
    }

    fn operators(&mut self) -> Document {
        let mut operators = self.set(|dice| {
            let name = dice.pick(&["$gt", "$lt", "$eq", "$ne", "$in", "$exists", "$odd-one"]);
            let argument = match name {
                "$in" => Bson::Array(vec![dice.scalar()]),
                "$exists" => Bson::Boolean(dice.roll(2) == 0),
                _ => dice.value(),
            };
            (name.into(), argument)
        });
        let (name, argument) = match self.roll(6) {
            0 => ("$elemMatch", self.path_filter().into()),
            1 => (
                "$elemMatch",
                self.deeper(doc! { "$gt": 1 }, Self::operators).into(),
            ),
            2 => (
                "$not",
                self.deeper(doc! { "$gt": 1 }, Self::operators).into(),
            ),
            3 => ("$not", self.regex()),
            4 => ("$regex", self.pattern().into()),
            _ => ("$gte", self.value()),
        };
        operators.insert(name, argument);
        self.shuffled(operators)
    }

    /// A filter whose field names are all paths, not operators. If a document has both paths and
    /// operators, its first field decides whether it is a filter or an operator document. Then the
    /// order of its fields would matter.
    fn path_filter(&mut self) -> Document {
        self.set(|dice| (dice.name(), dice.value()))
    }

    fn expression(&mut self) -> Bson {
        self.deeper(Bson::Null, |dice| match dice.roll(8) {
            0 => Bson::from(format!(
                "${}",
                dice.pick(&["a", "b.c", "a.0", "2024", "a b"])
            )),
            1 => Bson::from(format!("$${}", dice.pick(&["ROOT", "v.5", "v.6"]))),
            2 => doc! { "$literal": dice.value() }.into(),
            3 | 4 => {
                let name = dice.pick(&["$add", "$eq", "$cond", "$x y"]);
                let count = dice.roll(4);
                let arguments: Vec<_> = (0..count).map(|_| dice.expression()).collect();
                doc! { name: arguments }.into()
            }
            5 => dice.set(|dice| (dice.name(), dice.expression())).into(),
            _ => dice.scalar(),
        })
    }

    fn keys(&mut self) -> Document {
        let count = self.roll(4);
        (0..count)
            .map(|_| {
                let name = self.name();
                let direction = match self.roll(5) {
                    0 => Bson::Int32(-1),
                    1 => Bson::Double(1.0),
                    2 => Bson::from("text"),
                    3 => doc! { "$meta": self.pick(&["textScore", "randVal"]) }.into(),
                    _ => Bson::from(self.planted()),
                };
                (name, direction)
            })
            .collect()
    }

    fn projection(&mut self) -> Document {
        self.set(|dice| {
            let name = dice.name();
            let flag = match dice.roll(5) {
                0 => Bson::Int32(0),
                1 => Bson::Boolean(true),
                2 => doc! { "$slice": dice.scalar() }.into(),
                3 => doc! { "$elemMatch": dice.path_filter() }.into(),
                // The expression is inside an operator, because a plain number or boolean is not a
                // value here: it decides whether the projection includes the field.
                _ => doc! { "$add": [dice.expression()] }.into(),
            };
            (name, flag)
        })
    }

    fn update(&mut self) -> Bson {
        match self.roll(4) {
            0 => doc! { self.planted(): self.planted() }.into(),
            1 => self.pipeline().into(),
            _ => {
                let modifiers = self.set(|dice| {
                    let name = dice.pick(&["$set", "$inc", "$unset", "$push", "$pull"]);
                    (name.into(), dice.changes(name).into())
                });
                Bson::from(modifiers)
            }
        }
    }

    fn changes(&mut self, modifier: &str) -> Document {
        self.set(|dice| {
            let name = dice.name();
            let change = match dice.roll(3) {
                0 => {
                    let pushed = doc! { "$each": dice.value(), "$slice": 5 };
                    dice.shuffled(pushed)
                }
                1 => dice.operators(),
                // The argument of `$pull` is a filter, and a shape shows the field names of a
                // filter. `value` may return a document whose field name contains `PLANTED`, which
                // no shape may show. So the argument is a scalar.
                _ if modifier == "$pull" => return (name, dice.scalar()),
                _ => return (name, dice.value()),
            };
            (name, change.into())
        })
    }

    pub(super) fn pipeline(&mut self) -> Vec<Document> {
        let count = self.roll(4);
        (0..count).map(|_| self.stage()).collect()
    }

    fn stage(&mut self) -> Document {
        self.deeper(doc! { "$limit": 1 }, |dice| match dice.roll(10) {
            0 => doc! { "$match": dice.filter() },
            1 => doc! { "$sort": dice.keys() },
            2 => doc! { "$project": dice.projection() },
            3 => doc! { "$group": dice.set(|dice| (dice.name(), dice.expression())) },
            4 => {
                let from = dice.pick(&["c", "c1", "c 2"]);
                let lookup = doc! { "from": from, "as": dice.name(), "pipeline": dice.pipeline() };
                doc! { "$lookup": dice.shuffled(lookup) }
            }
            5 => doc! { "$facet": dice.set(|dice| (dice.name(), dice.pipeline().into())) },
            6 => doc! { "$unset": dice.list(Self::name) },
            7 => doc! { "$limit": dice.scalar() },
            8 => doc! { "$changeStream": { "resumeAfter": dice.value() } },
            _ => doc! { "$unwind": dice.pick(&["$a", "$b"]) },
        })
    }

    fn statement(&mut self) -> Document {
        let mut statement = doc! { "q": self.filter(), "u": self.update() };
        if self.roll(3) == 0 {
            statement.insert("multi", true);
        }
        if self.roll(4) == 0 {
            statement.insert("arrayFilters", self.list(Self::filter));
        }
        statement
    }

    /// A random command of any kind.
    pub(super) fn command(&mut self) -> Document {
        let collection = self.pick(&["c", "c", "c", "e"]);
        let mut command = match self.roll(8) {
            0 => doc! { "aggregate": collection, "pipeline": self.pipeline() },
            1 => doc! { "update": collection, "updates": self.list(Self::statement) },
            2 => doc! { "distinct": collection, "key": self.name(), "query": self.filter() },
            3 => {
                let statements = self.list(|dice| doc! { "q": dice.filter(), "limit": 1 });
                doc! { "delete": collection, "deletes": statements }
            }
            4 => doc! { "explain": { "count": collection, "query": self.filter() } },
            5 => doc! { "insert": collection, "documents": [{ self.planted(): self.value() }] },
            _ => {
                let mut find = doc! { "find": collection, "filter": self.filter() };
                if self.roll(2) == 0 {
                    find.insert("sort", self.keys());
                }
                if self.roll(2) == 0 {
                    find.insert("projection", self.projection());
                }
                if self.roll(3) == 0 {
                    find.insert("let", self.set(|dice| (dice.name(), dice.expression())));
                }
                find
            }
        };
        command.insert("comment", self.planted());
        command.insert("$db", "d");
        command
    }
}
