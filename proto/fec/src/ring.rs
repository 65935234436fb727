//! What a decoder remembers of each number of the last stretch of a path.

/// In place of a group's index.
pub(crate) const NO_GROUP: u16 = u16::MAX;

/// In place of a number.
const NO_NUMBER: u64 = u64::MAX;

/// Slots that are looked at per call for something to let go of.
const RELEASE_STEPS: usize = 8;

pub(crate) struct Slot<H> {
    number: u64,
    held: Option<H>,
    held_bytes: u32,
    /// The group under repair that this is a member of.
    pub(crate) group: u16,
    /// It arrived or was recovered.
    pub(crate) has_come: bool,
    /// Its group is done with.
    pub(crate) is_closed: bool,
}

/// Numbers from `reach` below the highest that arrived to `reach` above it.
pub(crate) struct Ring<H> {
    slots: Box<[Slot<H>]>,
    highest: Option<u64>,
    /// Below this nothing is held.
    oldest: u64,
    /// How far below the highest something is held.
    pub(crate) span: u64,
    bytes: usize,
    bytes_max: usize,
}

/// Where a number lies.
pub(crate) enum Where {
    Old,
    Here,
    Ahead,
}

impl<H> Ring<H> {
    /// A ring that reaches `reach` numbers, a power of two, to both sides of the highest.
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

    /// Where `number` lies; before anything arrived, every number is ahead.
    pub(crate) fn locate(&self, number: u64) -> Where {
        match self.highest {
            Some(highest) if number <= highest && highest - number >= self.reach() => Where::Old,
            Some(highest) if number <= highest || number - highest <= self.reach() => Where::Here,
            _ => Where::Ahead,
        }
    }

    /// Moves the stretch up, so that it holds the arrived `number` too.
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

    /// The slot of a number that is [`Where::Here`]. What an older number left there is dropped;
    /// the group that this was a member of is returned.
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

    /// Keeps `held` for a claimed number if there is room for its `bytes`.
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

    /// What is held of `number`.
    pub(crate) fn held(&self, number: u64) -> Option<&H> {
        self.peek(number)?.held.as_ref()
    }

    /// Lets go of what the slot of `number` holds.
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
