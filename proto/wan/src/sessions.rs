//! Sessions by number. Numbers are drawn at random from all 32 bits, so an off-path attacker must
//! guess them.

use crate::session::Session;
use longhaul_secret::SecretRng;
use longhaul_units::Rng;

pub(crate) struct Sessions {
    /// The sessions' numbers, in an array of their own: each datagram searches it.
    numbers: Vec<u32>,
    all: Vec<Session>,
    max: usize,
}

impl Sessions {
    pub(crate) fn new(max: u32) -> Self {
        Sessions { numbers: Vec::new(), all: Vec::new(), max: max as usize }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.all.len() == self.max
    }

    /// Draws an unused session number. `None` if the maximum is reached.
    pub(crate) fn draw_number(&self, rng: &mut SecretRng) -> Option<u32> {
        if self.is_full() {
            return None;
        }
        loop {
            let number = rng.next_u64() as u32;
            // 0 names no session.
            if number != 0 && !self.numbers.contains(&number) {
                return Some(number);
            }
        }
    }

    pub(crate) fn insert(&mut self, session: Session) {
        self.numbers.push(session.local());
        self.all.push(session);
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, local: u32) -> Option<&mut Session> {
        let place = self.numbers.iter().position(|number| *number == local)?;
        self.all.get_mut(place)
    }

    pub(crate) fn remove(&mut self, local: u32) -> Option<Session> {
        let place = self.numbers.iter().position(|number| *number == local)?;
        self.numbers.remove(place);
        Some(self.all.remove(place))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.all.iter()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.all.iter_mut()
    }
}
