//! Pool of shared objects that are reused once every other holder has dropped them.

use std::collections::VecDeque;

/// Items in use that `take` examines before it gives up.
const LOOKS: usize = 4;
/// Minimum items taken between two sweeps over all items in use.
const SWEEP_MIN: usize = 256;
/// Maximum items that one `take` reclaims: more than one, to catch up with late returns.
const RECLAIMED_MAX: usize = 2;
/// Items that are prefetched into the cache ahead of use: over a long path, an item was last used
/// one RTT ago.
const FETCH_AHEAD: usize = 6;

/// A shared item, whose sharing can be checked.
pub trait Returned: Clone {
    /// Returns whether there is no other reference.
    fn is_returned(&self) -> bool;

    /// Prefetches the memory that the next user writes to.
    #[inline]
    fn fetch(&self) {}
}

/// Items that are given out, and reused once every other holder has dropped them.
///
/// Holders do not notify the pool on release, which costs them only a reference count decrement.
/// The pool checks items in the order in which they were given out, which is about the order of
/// their return.
#[derive(Debug)]
pub struct Circulation<T> {
    in_use: VecDeque<T>,
    /// A stack: the last item returned is reused first, so that no more memory is touched than is
    /// held at once.
    free: Vec<T>,
    /// Items taken since the last sweep.
    taken: usize,
}

impl<T> Default for Circulation<T> {
    fn default() -> Self {
        Circulation { in_use: VecDeque::new(), free: Vec::new(), taken: 0 }
    }
}

impl<T: Returned> Circulation<T> {
    /// Returns an item without other holders, if one was found; otherwise the caller creates one.
    /// The pool never has more than about twice as many items as are held at once.
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

    /// Adds an item that others hold.
    #[inline]
    pub fn give(&mut self, item: T) {
        self.in_use.push_back(item);
    }

    /// Number of items, in use or not.
    pub fn len(&self) -> usize {
        self.in_use.len() + self.free.len()
    }

    /// Returns whether the pool is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All items, in use or not.
    pub fn into_items(self) -> impl Iterator<Item = T> {
        self.in_use.into_iter().chain(self.free)
    }

    /// The oldest item may be held for long, while later ones have returned.
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

    /// If many items are held for long, checks all items instead of creating more: at most once per
    /// half of the pool's items taken.
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
