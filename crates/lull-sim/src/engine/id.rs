//! Indices into the tables of a run, each of a type of its own, so that a queue cannot be taken for a thread, and an
//! index that may be absent is an `Option`.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

/// An index into one table.
pub(crate) trait Id: Copy {
    /// The index of this place.
    fn at(place: usize) -> Self;
    /// The place of this index.
    fn place(self) -> usize;
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident($raw:ty);)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name($raw);

        impl $name {
            /// Makes the index from the number in a world's description.
            #[inline]
            pub const fn new(raw: $raw) -> $name {
                $name(raw)
            }

            /// Returns the number that a world's description, or the core, has for it.
            #[inline]
            pub const fn raw(self) -> $raw {
                self.0
            }
        }

        impl Id for $name {
            #[inline]
            fn at(place: usize) -> $name {
                debug_assert!(place <= <$raw>::MAX as usize, "a table outgrows its index");
                $name(place as $raw)
            }

            #[inline]
            fn place(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )* };
}

ids! {
    /// A CPU.
    CpuId(u16);
    /// A queue, which is also its NAPI's index in the core.
    QueueId(u32);
    /// A busy-polling CPU group.
    GroupId(u32);
    /// A thread.
    ThreadId(u32);
    /// A connection.
    ConnId(u32);
    /// An epoll context.
    ContextId(u32);
    /// A source of load.
    SourceId(u32);
    /// A message socket.
    SocketId(u32);
    /// An AF_XDP socket.
    XskId(u32);
    /// A flow of a flood, with a sink's socket.
    FlowId(u32);
    /// A step of the operator who acts on the world from outside.
    StepId(u32);
}

/// Which completion queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Rx,
    Tx,
}

impl ConnId {
    /// Returns the connection this many places after this one.
    pub(crate) fn plus(self, places: u32) -> ConnId {
        ConnId(self.0 + places)
    }

    /// Returns how many places this one comes after `first`, which must not be behind it.
    pub(crate) fn after(self, first: ConnId) -> u32 {
        self.0 - first.0
    }
}

/// A table that is indexed by `I`.
#[derive(Debug)]
pub(crate) struct Table<I, T> {
    rows: Vec<T>,
    index: PhantomData<I>,
}

impl<I: Id, T> Table<I, T> {
    pub(crate) fn new() -> Table<I, T> {
        Table { rows: Vec::new(), index: PhantomData }
    }

    pub(crate) fn push(&mut self, row: T) -> I {
        self.rows.push(row);
        I::at(self.rows.len() - 1)
    }

    /// The index that the next row gets.
    pub(crate) fn next(&self) -> I {
        I::at(self.rows.len())
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = I> + use<I, T> {
        (0..self.rows.len()).map(I::at)
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, T> {
        self.rows.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.rows.iter_mut()
    }

    /// Every row with its index.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (I, &T)> {
        self.rows.iter().enumerate().map(|(place, row)| (I::at(place), row))
    }
}

impl<I: Id, T> FromIterator<T> for Table<I, T> {
    fn from_iter<A: IntoIterator<Item = T>>(rows: A) -> Table<I, T> {
        Table { rows: rows.into_iter().collect(), index: PhantomData }
    }
}

impl<I: Id, T> Index<I> for Table<I, T> {
    type Output = T;
    #[inline]
    fn index(&self, index: I) -> &T {
        &self.rows[index.place()]
    }
}

impl<I: Id, T> IndexMut<I> for Table<I, T> {
    #[inline]
    fn index_mut(&mut self, index: I) -> &mut T {
        &mut self.rows[index.place()]
    }
}
