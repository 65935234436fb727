//! Sessions by their number, whose low bits are their place: nothing is hashed.

use crate::session::Session;

pub(crate) struct Sessions {
    places: Vec<Option<Box<Session>>>,
    max: usize,
}

impl Sessions {
    pub(crate) fn new(max: u32) -> Self {
        Sessions { places: Vec::new(), max: max as usize }
    }

    /// `random` makes up all but the place in the number. `None`: there are as many as there may be.
    pub(crate) fn insert(&mut self, random: u32, make: impl FnOnce(u32) -> Session) -> Option<u32> {
        let place = match self.places.iter().position(Option::is_none) {
            Some(place) => place,
            None if self.places.len() < self.max => {
                self.places.push(None);
                self.places.len() - 1
            }
            None => return None,
        };
        // Never 0, which names no session.
        let local = (random | 0x100) & !0xff | place as u32;
        self.places[place] = Some(Box::new(make(local)));
        Some(local)
    }

    pub(crate) fn get_mut(&mut self, local: u32) -> Option<&mut Session> {
        let session = self.places.get_mut((local & 0xff) as usize)?.as_deref_mut()?;
        (session.local == local).then_some(session)
    }

    pub(crate) fn remove(&mut self, local: u32) -> Option<Box<Session>> {
        self.get_mut(local)?;
        self.places[(local & 0xff) as usize].take()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.places.iter().flatten().map(|session| &**session)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.places.iter_mut().flatten().map(|session| &mut **session)
    }
}
