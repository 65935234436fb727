//! A region of a ring, and the windows whose messages are placed in it.

use super::Fate;

/// A window that has begun, with a fate for each message.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Counts without wrap.
    pub number: u64,
    fates: Box<[Fate]>,
    /// Messages that can no longer change for the better.
    settled: u32,
}

/// True if nothing further of the message is expected.
fn is_settled(fate: Fate) -> bool {
    matches!(fate, Fate::Present | Fate::NeverSent | Fate::WrongLength)
}

impl Window {
    /// Window `number`, with initial fates.
    pub fn begin(number: u64, fates: Box<[Fate]>) -> Self {
        let settled = fates.iter().filter(|fate| is_settled(**fate)).count() as u32;
        Window { number, fates, settled }
    }

    pub fn fates(&self) -> &[Fate] {
        &self.fates
    }

    pub fn into_fates(self) -> Box<[Fate]> {
        self.fates
    }

    /// True if nothing further of any message is expected.
    pub fn is_settled(&self) -> bool {
        self.settled as usize == self.fates.len()
    }

    /// Returns the previous fate.
    #[inline]
    pub fn set(&mut self, index: usize, fate: Fate) -> Fate {
        let before = std::mem::replace(&mut self.fates[index], fate);
        self.settled = self.settled - u32::from(is_settled(before)) + u32::from(is_settled(fate));
        before
    }

    /// Messages whose bytes another message has replaced lose their presence; returns those of the
    /// range that had it.
    fn overwrite(&mut self, from: usize, to: usize) -> impl Iterator<Item = usize> + '_ {
        (from..to.min(self.fates.len())).filter(|index| {
            let is_hit = self.fates[*index] == Fate::Present;
            if is_hit {
                self.set(*index, Fate::Overwritten);
            }
            is_hit
        })
    }
}

/// State of a region.
#[derive(Clone, Debug)]
pub(super) enum Region {
    /// No window has used it.
    Queued,
    /// The messages of a window are arriving.
    Filling(Window),
    /// The window is closed and delivered, and its chunk is held. `overrun` is a later window that
    /// is arriving over it.
    Valid { held: Window, overrun: Option<Window> },
    /// The chunk was released. Late messages of its window are still recognised.
    Released(Window),
}

/// What a message did to its region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Placed {
    /// The first arrival of a message of an open window.
    Arrived,
    /// It had arrived before.
    Duplicate,
    /// Its window is closed, and counted it as `was` until this arrival.
    Late { was: Fate },
    /// Its window is closed and forgotten.
    Stale,
}

/// Changes of fates in a closed window.
pub(super) trait Recount {
    fn recount(&mut self, index: usize, from: Fate, to: Fate);
}

impl Region {
    /// The open window, if there is one.
    pub fn open(&mut self) -> Option<&mut Window> {
        match self {
            Region::Filling(window) | Region::Valid { overrun: Some(window), .. } => Some(window),
            _ => None,
        }
    }

    /// The closed window, if it is remembered.
    pub fn closed(&mut self) -> Option<&mut Window> {
        match self {
            Region::Valid { held, .. } | Region::Released(held) => Some(held),
            _ => None,
        }
    }

    /// A message of window `number` was placed at `index`, and covers the messages up to `end`. Its
    /// fate in its own window is `fate`.
    pub fn place(
        &mut self,
        number: u64,
        index: usize,
        end: usize,
        fate: Fate,
        counts: &mut impl Recount,
    ) -> Placed {
        // Bytes of a window that is held are watched until its release.
        if let Region::Valid { held, .. } = self {
            let from = if held.number == number { index + 1 } else { index };
            for hit in held.overwrite(from, end) {
                counts.recount(hit, Fate::Present, Fate::Overwritten);
            }
        }
        if let Some(open) = self.open() {
            let from = if open.number == number { index + 1 } else { index };
            open.overwrite(from, end).for_each(drop);
            if open.number == number {
                return match open.set(index, fate) {
                    Fate::Present | Fate::WrongLength | Fate::Overwritten => Placed::Duplicate,
                    _ => Placed::Arrived,
                };
            }
        }
        match self.closed() {
            Some(closed) if closed.number == number => match closed.fates[index] {
                Fate::Present | Fate::WrongLength | Fate::Overwritten | Fate::TooLate => {
                    Placed::Duplicate
                }
                was => {
                    closed.set(index, Fate::TooLate);
                    counts.recount(index, was, Fate::TooLate);
                    Placed::Late { was }
                }
            },
            _ => Placed::Stale,
        }
    }
}
