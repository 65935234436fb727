//! The decoder's state of each recent number of a path.

/// No group.
pub(crate) const NO_GROUP: u16 = u16::MAX;

/// No number.
const NO_NUMBER: u64 = u64::MAX;

/// Slots examined for release per call.
const RELEASE_STEPS: usize = 8;

pub(crate) struct Slot<H> {
    number: u64,
    held: Option<H>,
    held_bytes: u32,
    /// The group under repair to which the number belongs.
    pub(crate) group: u16,
    /// It arrived or was recovered.
    pub(crate) has_come: bool,
    /// Its group has ended.
    pub(crate) is_closed: bool,
}

/// Slots of the numbers from `reach` below the highest that arrived to `reach` above it.
pub(crate) struct Ring<H> {
    slots: Box<[Slot<H>]>,
    highest: Option<u64>,
    /// The lowest number that can be held.
    oldest: u64,
    /// Span below the highest in which datagrams are held.
    pub(crate) span: u64,
    bytes: usize,
    bytes_max: usize,
}

/// Position of a number relative to the ring.
pub(crate) enum Where {
    Old,
    Here,
    Ahead,
}

impl<H> Ring<H> {
    /// Creates a ring of `reach` numbers, a power of two, on both sides of the highest.
    pub(crate) fn new(reach: usize, span: u64, bytes_max: usize) -> Self {
        let slots = 2 * reach;
        Ring {
            slots: (0..slots).map(|_| Slot::empty(NO_NUMBER)).collect(),
            highest: None,
            oldest: 0,
            span,
            bytes: 0,
            bytes_max,
        }
    }

    pub(crate) fn reach(&self) -> u64 {
        self.slots.len() as u64 / 2
    }

    pub(crate) fn held_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the position of `number`; before anything arrived, every number is ahead.
    pub(crate) fn locate(&self, number: u64) -> Where {
        match self.highest {
            Some(highest) if number <= highest && highest - number >= self.reach() => Where::Old,
            Some(highest) if number <= highest || number - highest <= self.reach() => Where::Here,
            _ => Where::Ahead,
        }
    }

    /// Moves the ring up to include the arrived `number`.
    pub(crate) fn advance(&mut self, number: u64) {
        let highest = match self.highest {
            None => {
                self.oldest = number.saturating_sub(self.span);
                number
            }
            Some(highest) => highest.max(number),
        };
        self.highest = Some(highest);
        self.oldest = self.oldest.max(highest.saturating_sub(self.slots.len() as u64 - 1));
        for _ in 0..RELEASE_STEPS {
            let Some(age) = highest.checked_sub(self.oldest) else { break };
            if age <= self.span && self.bytes <= self.bytes_max {
                break;
            }
            self.release(self.oldest);
            self.oldest += 1;
        }
    }

    pub(crate) fn peek(&self, number: u64) -> Option<&Slot<H>> {
        let slot = &self.slots[self.index(number)];
        (slot.number == number).then_some(slot)
    }

    pub(crate) fn peek_mut(&mut self, number: u64) -> Option<&mut Slot<H>> {
        let slot = &mut self.slots[self.index(number)];
        (slot.number == number).then_some(slot)
    }

    /// Returns the slot of a number that is [`Where::Here`], and the group of the older number
    /// whose contents it drops.
    pub(crate) fn claim(&mut self, number: u64) -> (u16, &mut Slot<H>) {
        let index = self.index(number);
        let mut broken = NO_GROUP;
        if self.slots[index].number != number {
            self.release(number);
            broken = self.slots[index].group;
            self.slots[index] = Slot::empty(number);
        }
        (broken, &mut self.slots[index])
    }

    /// Stores `held` for a claimed number if there is room for its `bytes`.
    pub(crate) fn hold(&mut self, number: u64, held: H, bytes: usize) {
        let index = self.index(number);
        if number < self.oldest || self.bytes + bytes > self.bytes_max {
            return;
        }
        self.bytes += bytes;
        let slot = &mut self.slots[index];
        slot.held = Some(held);
        slot.held_bytes = bytes as u32;
    }

    /// Returns the handle of `number`.
    pub(crate) fn held(&self, number: u64) -> Option<&H> {
        self.peek(number)?.held.as_ref()
    }

    /// Releases the handle in the slot of `number`.
    pub(crate) fn release(&mut self, number: u64) {
        let index = self.index(number);
        let slot = &mut self.slots[index];
        if slot.held.take().is_some() {
            self.bytes -= slot.held_bytes as usize;
        }
    }

    fn index(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }
}

impl<H> Slot<H> {
    fn empty(number: u64) -> Self {
        Slot {
            number,
            held: None,
            held_bytes: 0,
            group: NO_GROUP,
            has_come: false,
            is_closed: false,
        }
    }
}
