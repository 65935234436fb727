//! Table of verbs objects by number.

use crate::VerbsError;

/// Objects by number. The number of a removed object is reused.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Option<T>>,
    free: Vec<u32>,
    what: &'static str,
    count_max: u32,
}

impl<T> Table<T> {
    /// Creates a table of at most `count_max` objects; `what` names them in errors, in the plural.
    pub fn new(what: &'static str, count_max: u32) -> Self {
        Table { places: Vec::new(), free: Vec::new(), what, count_max }
    }

    /// Inserts an object and returns its number.
    pub fn insert(&mut self, value: T) -> Result<u32, VerbsError> {
        if let Some(free) = self.free.pop() {
            self.places[free as usize] = Some(value);
            return Ok(free);
        }
        if self.places.len() >= self.count_max as usize {
            return Err(VerbsError::Limit { what: self.what, limit: self.count_max.into() });
        }
        self.places.push(Some(value));
        Ok(self.places.len() as u32 - 1)
    }

    /// `true` if no further object fits.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.places.len() >= self.count_max as usize
    }

    #[inline]
    pub fn get(&self, number: u32) -> Option<&T> {
        self.places.get(number as usize)?.as_ref()
    }

    #[inline]
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.places.get_mut(number as usize)?.as_mut()
    }

    /// Every object.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().flatten()
    }

    /// Removes an object.
    pub fn remove(&mut self, number: u32) -> Option<T> {
        let value = self.places.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(value)
    }
}
