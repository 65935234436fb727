//! Slots of a host's queue, and the identifiers of their commands.

/// Slots of a queue at most: the identifier's upper bits tell uses of a slot apart.
pub(super) const SLOTS_MAX: u16 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 12;

enum Slot<T> {
    Free { uses: u16 },
    Outstanding { uses: u16, of: T },
}

/// Slots with the commands outstanding in them.
pub(super) struct Slots<T> {
    all: Vec<Slot<T>>,
    free: Vec<u16>,
}

impl<T> Slots<T> {
    pub(super) fn new(count: u16) -> Self {
        let count = count.clamp(1, SLOTS_MAX);
        Slots {
            all: (0..count).map(|_| Slot::Free { uses: 0 }).collect(),
            free: (0..count).rev().collect(),
        }
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn outstanding(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// The slot that [`Slots::occupy`] takes next.
    pub(super) fn next(&self) -> Option<u16> {
        self.free.last().copied()
    }

    /// Takes a slot. Returns it and the identifier of its command, or `of` if all are occupied.
    pub(super) fn occupy(&mut self, of: T) -> Result<(u16, u16), T> {
        let Some(number) = self.free.pop() else { return Err(of) };
        let slot = &mut self.all[usize::from(number)];
        let (Slot::Free { uses } | Slot::Outstanding { uses, .. }) = *slot;
        let uses = uses.wrapping_add(1);
        *slot = Slot::Outstanding { uses, of };
        Ok((number, number | uses << SLOT_BITS))
    }

    /// Frees the slot of a command. `None` if the command is not outstanding.
    pub(super) fn release(&mut self, id: u16) -> Option<(u16, T)> {
        let number = id & (SLOTS_MAX - 1);
        let slot = self.all.get_mut(usize::from(number))?;
        match slot {
            Slot::Outstanding { uses, .. } if *uses << SLOT_BITS == id & !(SLOTS_MAX - 1) => {
                let free = Slot::Free { uses: *uses };
                self.free.push(number);
                match std::mem::replace(slot, free) {
                    Slot::Outstanding { of, .. } => Some((number, of)),
                    Slot::Free { .. } => None,
                }
            }
            _ => None,
        }
    }

    /// The outstanding commands.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.all.iter().filter_map(|slot| match slot {
            Slot::Outstanding { of, .. } => Some(of),
            Slot::Free { .. } => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_or_second_response_names_no_command() {
        let mut slots = Slots::new(2);
        let (slot, id) = slots.occupy('a').unwrap();
        assert_eq!(slots.release(id ^ 1), None);
        assert_eq!(slots.release(id), Some((slot, 'a')));
        assert_eq!(slots.release(id), None);
        let (again, other) = slots.occupy('b').unwrap();
        assert_eq!(again, slot);
        assert_eq!(slots.release(id), None, "an identifier of an earlier use");
        slots.occupy('c').unwrap();
        assert_eq!((slots.occupy('d'), slots.outstanding()), (Err('d'), 2));
        assert_eq!(slots.release(other), Some((slot, 'b')));
        assert_eq!(slots.release(0xffff), None);
    }
}
