//! What the walk of a command builds: one printed form, either as a hash or as text.
//!
//! The walk is written once over the trait [`Form`], so hash and text cannot drift apart. It builds two forms at a time,
//! the fine and the coarse one, as a [`Node`]; collections keep the coarse side only from where it begins to differ.

use super::digest::Digest;
use super::name::Name;
use super::walk::MAX_SET_ENTRIES;

/// One printed form: a leaf, an entry, a document or a list.
pub(super) trait Form: Clone + Default + PartialEq {
    /// Room for the different members of one set.
    type Store<X: Clone + Default>: Store<X> + Clone;
    /// A set on its way to be printed.
    type Unordered: Default;
    /// A sequence on its way to be printed.
    type Ordered: Clone + Default;

    /// A text of ours.
    fn word(word: Word) -> Self;
    /// A text that is printed as it is; the caller has made sure that nothing of a value is in it.
    fn leaf(text: &[u8]) -> Self;
    /// A name, quoted if it has to be.
    fn name(name: Name<'_>) -> Self;
    /// `key:value`
    fn entry(key: &Self, value: &Self) -> Self;
    /// Adds a member that differs from all before.
    fn add(entries: &mut Self::Unordered, entry: &Self);
    /// The set as a document or list.
    fn close_set(entries: Self::Unordered, bracket: Bracket) -> Self;
    /// Adds the next item.
    fn append(items: &mut Self::Ordered, item: &Self);
    /// The sequence as a document or list.
    fn close_sequence(items: &Self::Ordered, bracket: Bracket) -> Self;
}

/// A bounded list of set members; the caller minds the bound.
pub(super) trait Store<X>: Default {
    fn push(&mut self, item: X);
    fn count(&self) -> usize;
    fn iter<'s>(&'s self) -> impl Iterator<Item = &'s X>
    where
        X: 's;
    fn iter_mut<'s>(&'s mut self) -> impl Iterator<Item = &'s mut X>
    where
        X: 's;
}

/// The brackets round a set or sequence.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub(super) enum Bracket {
    /// `{…}`
    Document,
    /// `[…]`
    List,
}

/// A text of ours with its digest, made at compile time by [`word!`](super::form::word).
#[derive(Copy, Clone, Debug)]
pub(super) struct Word {
    pub(super) text: &'static str,
    pub(super) digest: Digest,
}

impl Word {
    pub(super) const fn new(text: &'static str) -> Self {
        Self {
            text,
            digest: Digest::of_text(text.as_bytes()),
        }
    }
}

/// The [`Word`] of a literal, hashed at compile time.
macro_rules! word {
    ($text:expr) => {
        const { $crate::shape::form::Word::new($text) }
    };
}
pub(super) use word;

/// A form in its fine and its coarse version.
#[derive(Clone, Debug)]
pub(super) struct Node<F> {
    pub(super) fine: F,
    pub(super) coarse: F,
}

impl<F: Form> Node<F> {
    /// A form that is the same in both.
    #[inline]
    pub(super) fn same(form: F) -> Self {
        Self {
            fine: form.clone(),
            coarse: form,
        }
    }

    /// A text of ours, the same in both.
    #[inline]
    pub(super) fn word(word: Word) -> Self {
        Self::same(F::word(word))
    }

    /// `?`
    #[inline]
    pub(super) fn value() -> Self {
        Self::word(word!("?"))
    }

    /// `...`: what lies deeper is left out.
    pub(super) fn cut() -> Self {
        Self::word(word!("..."))
    }

    /// A name, the same in both.
    pub(super) fn name(name: Name<'_>) -> Self {
        Self::same(F::name(name))
    }

    /// The same node with a text of ours as its coarse version.
    pub(super) fn with_coarse(self, word: Word) -> Self {
        Self {
            fine: self.fine,
            coarse: F::word(word),
        }
    }

    /// `key:value`
    #[inline]
    pub(super) fn entry(key: &F, value: &Self) -> Self {
        let fine = F::entry(key, &value.fine);
        if value.is_same() {
            return Self::same(fine);
        }
        Self {
            fine,
            coarse: F::entry(key, &value.coarse),
        }
    }

    #[inline]
    fn is_same(&self) -> bool {
        self.fine == self.coarse
    }
}

/// A fine collection and its coarse sister, which exists only from the first member in which they differ.
#[derive(Clone, Default, Debug)]
struct Pair<C> {
    fine: C,
    coarse: Option<C>,
}

impl<C: Clone> Pair<C> {
    #[inline]
    fn each<F: Form>(&mut self, node: &Node<F>, mut add: impl FnMut(&mut C, &F)) {
        if !node.is_same() && self.coarse.is_none() {
            self.coarse = Some(self.fine.clone());
        }
        add(&mut self.fine, &node.fine);
        if let Some(coarse) = &mut self.coarse {
            add(coarse, &node.coarse);
        }
    }

    #[inline]
    fn close<F: Form>(&self, close: impl Fn(&C) -> F) -> Node<F> {
        let fine = close(&self.fine);
        match &self.coarse {
            None => Node::same(fine),
            Some(coarse) => Node {
                fine,
                coarse: close(coarse),
            },
        }
    }
}

/// A set: equal members count once, order does not count, and too many leave only a mark.
pub(super) struct Set<F: Form> {
    members: Pair<Members<F>>,
    max_members: usize,
}

impl<F: Form> Set<F> {
    #[inline]
    pub(super) fn new() -> Self {
        Self::with_max(MAX_SET_ENTRIES)
    }

    /// A set that leaves only a mark when it gets more than `max_members`, which is at most [`MAX_SET_ENTRIES`].
    #[inline]
    pub(super) fn with_max(max_members: usize) -> Self {
        Self {
            members: Pair::default(),
            max_members,
        }
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        self.members.each(item, |members, item| {
            if members.is_over || members.store.iter().any(|member| member == item) {
                return;
            }
            if members.store.count() >= self.max_members {
                members.is_over = true;
            } else {
                members.store.push(item.clone());
            }
        });
    }

    #[inline]
    pub(super) fn close(&self, bracket: Bracket) -> Node<F> {
        self.members.close(|members| {
            if members.is_over {
                return F::word(too_many(bracket));
            }
            let mut entries = F::Unordered::default();
            for member in members.store.iter() {
                F::add(&mut entries, member);
            }
            F::close_set(entries, bracket)
        })
    }
}

#[derive(Clone)]
struct Members<F: Form> {
    store: F::Store<F>,
    is_over: bool,
}

impl<F: Form> Default for Members<F> {
    #[inline]
    fn default() -> Self {
        Self {
            store: F::Store::default(),
            is_over: false,
        }
    }
}

/// A sequence: order counts.
pub(super) struct Sequence<F: Form> {
    items: Pair<(F::Ordered, Option<F>)>,
}

impl<F: Form> Sequence<F> {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            items: Pair {
                fine: Default::default(),
                coarse: None,
            },
        }
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an entry that the coarse version leaves out.
    pub(super) fn fine_entry(&mut self, key: &F, value: &Node<F>) {
        if self.items.coarse.is_none() {
            self.items.coarse = Some(self.items.fine.clone());
        }
        F::append(&mut self.items.fine.0, &F::entry(key, &value.fine));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        self.items
            .each(item, |(items, _), item| F::append(items, item));
    }

    /// Adds an item of a list unless it prints like the one before it.
    pub(super) fn unlike_item(&mut self, item: &Node<F>) {
        self.items.each(item, |(items, before), item| {
            if before.as_ref() != Some(item) {
                F::append(items, item);
                *before = Some(item.clone());
            }
        });
    }

    #[inline]
    pub(super) fn close(&self, bracket: Bracket) -> Node<F> {
        self.items
            .close(|(items, _)| F::close_sequence(items, bracket))
    }
}

/// A filter: a set of conjuncts, of which those of one path print as one entry.
pub(super) struct Conjuncts<F: Form> {
    conjuncts: Pair<Gathered<F>>,
}

/// How a conjunct prints, alone and among others of its path.
#[derive(Copy, Clone, Eq, PartialEq, Default, Debug)]
pub(super) enum Role {
    /// An entry of the filter itself, of no path.
    #[default]
    Top,
    /// `$eq`, which alone is not named.
    Equal,
    /// `$regex`, which alone is not named.
    Regex,
    /// Any operator that is always named.
    Operator,
}

#[derive(Clone, Default)]
struct Conjunct<F> {
    role: Role,
    /// Whether an earlier conjunct has the same path, and prints this one too.
    is_later: bool,
    /// Whether a later conjunct has the same path.
    has_later: bool,
    path: F,
    /// The argument for `$eq` and `$regex`, else the entry `operator:argument`.
    form: F,
}

#[derive(Clone)]
struct Gathered<F: Form> {
    store: F::Store<Conjunct<F>>,
    is_over: bool,
}

impl<F: Form> Conjuncts<F> {
    #[inline]
    pub(super) fn new() -> Self {
        let fine = Gathered {
            store: F::Store::default(),
            is_over: false,
        };
        Self {
            conjuncts: Pair { fine, coarse: None },
        }
    }

    /// Adds a conjunct of no path.
    pub(super) fn top(&mut self, operator: &F, argument: &Node<F>) {
        self.add(Role::Top, &F::default(), &Node::entry(operator, argument));
    }

    /// Adds a conjunct of a path, `form` being what [`Role`] asks for.
    #[inline]
    pub(super) fn add(&mut self, role: Role, path: &F, form: &Node<F>) {
        self.conjuncts
            .each(form, |gathered, form| gathered.add(role, path, form));
    }

    #[inline]
    pub(super) fn close(&self) -> Node<F> {
        self.conjuncts.close(Gathered::close)
    }
}

impl<F: Form> Gathered<F> {
    fn add(&mut self, role: Role, path: &F, form: &F) {
        let mut first_of_path = None;
        for known in self.store.iter_mut() {
            if known.path != *path || (known.role == Role::Top) != (role == Role::Top) {
                continue;
            }
            if known.form == *form && known.role == role {
                return;
            }
            if role != Role::Top && !known.is_later {
                first_of_path = Some(known);
            }
        }
        let is_later = first_of_path.is_some();
        if let Some(first) = first_of_path {
            first.has_later = true;
        }
        if self.store.count() >= MAX_SET_ENTRIES {
            self.is_over = true;
        } else {
            let (path, form) = (path.clone(), form.clone());
            self.store.push(Conjunct {
                role,
                is_later,
                has_later: false,
                path,
                form,
            });
        }
    }

    fn close(&self) -> F {
        if self.is_over {
            return F::word(too_many(Bracket::Document));
        }
        let mut entries = F::Unordered::default();
        for conjunct in self.store.iter().filter(|conjunct| !conjunct.is_later) {
            match conjunct.role {
                Role::Top => F::add(&mut entries, &conjunct.form),
                Role::Equal | Role::Regex if !conjunct.has_later => {
                    F::add(&mut entries, &F::entry(&conjunct.path, &conjunct.form));
                }
                Role::Equal | Role::Regex | Role::Operator => {
                    let operators = self.operators_of(conjunct);
                    F::add(&mut entries, &F::entry(&conjunct.path, &operators));
                }
            }
        }
        F::close_set(entries, Bracket::Document)
    }

    /// The operators of a path, of which the first conjunct is given.
    fn operators_of(&self, first: &Conjunct<F>) -> F {
        let mut operators = F::Unordered::default();
        if first.has_later {
            let is_of_path =
                |other: &&Conjunct<F>| other.role != Role::Top && other.path == first.path;
            for conjunct in self.store.iter().filter(is_of_path) {
                F::add(&mut operators, &conjunct.named());
            }
        } else {
            F::add(&mut operators, &first.named());
        }
        F::close_set(operators, Bracket::Document)
    }
}

impl<F: Form> Conjunct<F> {
    /// The entry `operator:argument`.
    fn named(&self) -> F {
        match self.role {
            Role::Equal => F::entry(&F::word(word!("$eq")), &self.form),
            Role::Regex => F::entry(&F::word(word!("$regex")), &self.form),
            Role::Operator | Role::Top => self.form.clone(),
        }
    }
}

fn too_many(bracket: Bracket) -> Word {
    match bracket {
        Bracket::Document => word!("{...}"),
        Bracket::List => word!("[...]"),
    }
}
