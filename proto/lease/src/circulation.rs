//! Pool of shared objects that are reused once every other holder has dropped them.

use std::collections::VecDeque;

/// Items in use that are looked at before the taker is told that there is none.
const LOOKS: usize = 4;
/// Items taken, at least, before all in use are looked at.
const SWEEP_MIN: usize = 256;
/// Items that taking one may bring back: more than one, so that what came back late is caught up
/// with.
const RECLAIMED_MAX: usize = 2;
/// How many items ahead of its use one is fetched into the cache: over a long path it was last used
/// a round trip ago.
const FETCH_AHEAD: usize = 6;

/// Something that is shared with others until they let go of it.
pub trait Returned: Clone {
    /// True when nobody else refers to it.
    fn is_returned(&self) -> bool;

    /// Starts to load what the next user will write to.
    #[inline]
    fn fetch(&self) {}
}

/// Items that are given out and used again once every holder has let go.
///
/// Holders tell nobody when they let go, which costs them one count down; items are looked at here,
/// in the order in which they were given out, which is about that in which they come back.
#[derive(Debug)]
pub struct Circulation<T> {
    in_use: VecDeque<T>,
    /// The one that came back last is used first, so that no more memory is touched than is held at
    /// once.
    free: Vec<T>,
    /// Items taken since all in use were last looked at.
    taken: usize,
}

impl<T> Default for Circulation<T> {
    fn default() -> Self {
        Circulation { in_use: VecDeque::new(), free: Vec::new(), taken: 0 }
    }
}

impl<T: Returned> Circulation<T> {
    /// An item that nobody else holds, if one was found: the caller makes one otherwise. There are
    /// never more than about twice as many as are held at once.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        for _ in 0..RECLAIMED_MAX {
            if !self.in_use.front().is_some_and(T::is_returned) {
                break;
            }
            self.free.extend(self.in_use.pop_front());
        }
        if let Some(soon) = self.in_use.get(FETCH_AHEAD) {
            soon.fetch();
        }
        self.taken += 1;
        self.free.pop().or_else(|| self.search()).or_else(|| self.sweep())
    }

    /// Takes note of an item that others hold from here on.
    #[inline]
    pub fn give(&mut self, item: T) {
        self.in_use.push_back(item);
    }

    /// Items that are here, in use or not.
    pub fn len(&self) -> usize {
        self.in_use.len() + self.free.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All items, in use or not.
    pub fn into_items(self) -> impl Iterator<Item = T> {
        self.in_use.into_iter().chain(self.free)
    }

    /// The item given out first may be held for long; those behind it need not be.
    fn search(&mut self) -> Option<T> {
        for _ in 0..LOOKS.min(self.in_use.len()) {
            let item = self.in_use.pop_front()?;
            if item.is_returned() {
                return Some(item);
            }
            self.in_use.push_back(item);
        }
        None
    }

    /// Where many are held for long, all those behind them are looked for, instead of making more:
    /// at most once for half as many taken as there are.
    #[cold]
    fn sweep(&mut self) -> Option<T> {
        if self.taken < SWEEP_MIN.max(self.in_use.len() / 2) {
            return None;
        }
        self.taken = 0;
        let free = &mut self.free;
        self.in_use.retain(|item| {
            let is_held = !item.is_returned();
            if !is_held {
                free.push(item.clone());
            }
            is_held
        });
        self.free.pop()
    }
}
