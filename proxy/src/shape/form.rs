//! What the walk of a command builds: one printed form, either as a hash or as text.
//!
//! The walk is written once over the trait [`Form`], so hash and text cannot drift apart. It builds two forms at a time,
//! the fine and the coarse one, as a [`Node`]; collections keep the coarse side only from where it begins to differ.

use super::digest::Digest;
use super::name::Name;
use super::walk::MAX_SET_ENTRIES;

/// One printed form: a leaf, an entry, a document or a list.
pub(super) trait Form: Clone + Default + PartialEq {
    /// Room for the members of a set beyond the first few.
    type Spare<X: Clone + Default>: Spare<X>;
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

/// Room for the members of a set beyond the first few, which costs nothing until one comes.
pub(super) trait Spare<X>: Clone + Default {
    /// The place of a member; `None` past the bound, which the caller minds.
    fn slot(&mut self, index: usize) -> Option<&mut X>;
    /// All places that have been made.
    fn slots(&self) -> &[X];
    /// The same to change them.
    fn slots_mut(&mut self) -> &mut [X];
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

/// A set: equal members count once, order does not count, and too many leave only a mark.
pub(super) struct Set<'s, F: Form> {
    members: Tracks<'s, F, F>,
    max_members: usize,
}

impl<F: Form> Set<'_, F> {
    /// The set that `fill` makes.
    #[inline]
    pub(super) fn of(bracket: Bracket, fill: impl FnOnce(&mut Set<'_, F>)) -> Node<F> {
        Self::with_max(MAX_SET_ENTRIES, bracket, fill)
    }

    /// The set that `fill` makes, which leaves only a mark when it gets more than `max_members`, at most
    /// [`MAX_SET_ENTRIES`].
    #[inline]
    pub(super) fn with_max(
        max_members: usize,
        bracket: Bracket,
        fill: impl FnOnce(&mut Set<'_, F>),
    ) -> Node<F> {
        let (mut fine, mut coarse) = (F::Spare::default(), F::Spare::default());
        let mut set = Set {
            members: Tracks::new(&mut fine, &mut coarse),
            max_members,
        };
        fill(&mut set);
        set.members.close(|members| {
            if members.is_over {
                return F::word(too_many(bracket));
            }
            let mut entries = F::Unordered::default();
            members
                .iter()
                .for_each(|member| F::add(&mut entries, member));
            F::close_set(entries, bracket)
        })
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        let max_members = self.max_members;
        self.members.each(item, |members, item| {
            if !members.iter().any(|member| member == item) {
                members.push(item.clone(), max_members);
            }
        });
    }
}

/// A sequence: order counts.
pub(super) struct Sequence<F: Form> {
    fine: Items<F>,
    /// There only from the first item that differs.
    coarse: Option<Items<F>>,
}

impl<F: Form> Sequence<F> {
    #[inline]
    pub(super) fn new() -> Self {
        Self {
            fine: Items {
                items: F::Ordered::default(),
                last: None,
            },
            coarse: None,
        }
    }

    /// Adds an entry of a document.
    #[inline]
    pub(super) fn entry(&mut self, key: &F, value: &Node<F>) {
        self.item(&Node::entry(key, value));
    }

    /// Adds an entry that the coarse version leaves out.
    pub(super) fn fine_entry(&mut self, key: &F, value: &Node<F>) {
        self.split();
        F::append(&mut self.fine.items, &F::entry(key, &value.fine));
    }

    /// Adds an item of a list.
    #[inline]
    pub(super) fn item(&mut self, item: &Node<F>) {
        self.each(item, |items, item| F::append(&mut items.items, item));
    }

    /// Adds an item of a list unless it prints like the one before it.
    pub(super) fn unlike_item(&mut self, item: &Node<F>) {
        self.each(item, |items, item| {
            if items.last.as_ref() != Some(item) {
                F::append(&mut items.items, item);
                items.last = Some(item.clone());
            }
        });
    }

    #[inline]
    pub(super) fn close(&self, bracket: Bracket) -> Node<F> {
        let fine = F::close_sequence(&self.fine.items, bracket);
        match &self.coarse {
            None => Node::same(fine),
            Some(coarse) => Node {
                fine,
                coarse: F::close_sequence(&coarse.items, bracket),
            },
        }
    }

    #[inline]
    fn each(&mut self, item: &Node<F>, add: impl Fn(&mut Items<F>, &F)) {
        if !item.is_same() {
            self.split();
        }
        add(&mut self.fine, &item.fine);
        if let Some(coarse) = &mut self.coarse {
            add(coarse, &item.coarse);
        }
    }

    fn split(&mut self) {
        if self.coarse.is_none() {
            self.coarse = Some(self.fine.clone());
        }
    }
}

/// A sequence so far, and its last item if it matters.
#[derive(Clone)]
struct Items<F: Form> {
    items: F::Ordered,
    last: Option<F>,
}

/// A filter: a set of conjuncts, of which those of one path print as one entry.
pub(super) struct Conjuncts<'s, F: Form> {
    conjuncts: Tracks<'s, F, Conjunct<F>>,
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

impl<F: Form> Conjuncts<'_, F> {
    /// The filter of the conjuncts that `fill` adds.
    #[inline]
    pub(super) fn of(fill: impl FnOnce(&mut Conjuncts<'_, F>)) -> Node<F> {
        let (mut fine, mut coarse) = (F::Spare::default(), F::Spare::default());
        let mut conjuncts = Conjuncts {
            conjuncts: Tracks::new(&mut fine, &mut coarse),
        };
        fill(&mut conjuncts);
        conjuncts.conjuncts.close(Track::close)
    }

    /// Adds a conjunct of no path.
    pub(super) fn top(&mut self, operator: &F, argument: &Node<F>) {
        self.add(Role::Top, &F::default(), &Node::entry(operator, argument));
    }

    /// Adds a conjunct of a path, `form` being what [`Role`] asks for.
    #[inline]
    pub(super) fn add(&mut self, role: Role, path: &F, form: &Node<F>) {
        self.conjuncts
            .each(form, |conjuncts, form| conjuncts.add(role, path, form));
    }
}

impl<F: Form> Track<'_, F, Conjunct<F>> {
    fn add(&mut self, role: Role, path: &F, form: &F) {
        let mut first_of_path = None;
        for known in self.iter_mut() {
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
        let (path, form) = (path.clone(), form.clone());
        self.push(
            Conjunct {
                role,
                is_later,
                has_later: false,
                path,
                form,
            },
            MAX_SET_ENTRIES,
        );
    }

    fn close(&self) -> F {
        if self.is_over {
            return F::word(too_many(Bracket::Document));
        }
        let mut entries = F::Unordered::default();
        for conjunct in self.iter().filter(|conjunct| !conjunct.is_later) {
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
            for conjunct in self.iter().filter(is_of_path) {
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

/// A fine collection and its coarse sister, which is kept only from the first member in which they differ.
struct Tracks<'s, F: Form, X: Clone + Default> {
    fine: Track<'s, F, X>,
    coarse: Track<'s, F, X>,
    is_split: bool,
}

impl<'s, F: Form, X: Clone + Default> Tracks<'s, F, X> {
    #[inline]
    fn new(fine: &'s mut F::Spare<X>, coarse: &'s mut F::Spare<X>) -> Self {
        Self {
            fine: Track::new(fine),
            coarse: Track::new(coarse),
            is_split: false,
        }
    }

    #[inline]
    fn each(&mut self, node: &Node<F>, add: impl Fn(&mut Track<'s, F, X>, &F)) {
        if !self.is_split && !node.is_same() {
            self.is_split = true;
            self.coarse.copy(&self.fine);
        }
        add(&mut self.fine, &node.fine);
        if self.is_split {
            add(&mut self.coarse, &node.coarse);
        }
    }

    #[inline]
    fn close(&self, close: impl Fn(&Track<'s, F, X>) -> F) -> Node<F> {
        let fine = close(&self.fine);
        if self.is_split {
            Node {
                fine,
                coarse: close(&self.coarse),
            }
        } else {
            Node::same(fine)
        }
    }
}

/// The different members of one set: the first few at hand, the rest in spare room that the caller lends, so that it
/// never has to be moved.
struct Track<'s, F: Form, X: Clone + Default> {
    near: [X; NEAR_MEMBERS],
    count: usize,
    is_over: bool,
    spare: &'s mut F::Spare<X>,
}

impl<'s, F: Form, X: Clone + Default> Track<'s, F, X> {
    #[inline]
    fn new(spare: &'s mut F::Spare<X>) -> Self {
        let near = std::array::from_fn(|_| X::default());
        Self {
            near,
            count: 0,
            is_over: false,
            spare,
        }
    }

    fn copy(&mut self, other: &Self) {
        self.near.clone_from(&other.near);
        self.count = other.count;
        self.is_over = other.is_over;
        if self.count > NEAR_MEMBERS {
            self.spare.clone_from(other.spare);
        }
    }

    /// Adds a member that differs from all before. One more than `max_members` make them too many.
    #[inline]
    fn push(&mut self, member: X, max_members: usize) {
        let slot = match self.count.checked_sub(NEAR_MEMBERS) {
            None => self.near.get_mut(self.count),
            Some(index) => self.spare.slot(index),
        };
        match slot {
            Some(slot) if self.count < max_members => {
                *slot = member;
                self.count += 1;
            }
            _ => self.is_over = true,
        }
    }

    #[inline]
    fn iter(&self) -> impl Iterator<Item = &X> {
        let spare = self
            .spare
            .slots()
            .iter()
            .take(self.count.saturating_sub(NEAR_MEMBERS));
        self.near.iter().take(self.count).chain(spare)
    }

    #[inline]
    fn iter_mut(&mut self) -> impl Iterator<Item = &mut X> {
        let spare = self.spare.slots_mut().iter_mut();
        let spare = spare.take(self.count.saturating_sub(NEAR_MEMBERS));
        self.near.iter_mut().take(self.count).chain(spare)
    }
}

fn too_many(bracket: Bracket) -> Word {
    match bracket {
        Bracket::Document => word!("{...}"),
        Bracket::List => word!("[...]"),
    }
}

/// Members of a set that need no spare room; few sets have more.
const NEAR_MEMBERS: usize = 8;
/// Members that the spare room has to take.
pub(super) const SPARE_MEMBERS: usize = MAX_SET_ENTRIES - NEAR_MEMBERS;
