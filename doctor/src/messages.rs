//! Messages of a flow: operations, message and packet sizes.

use crate::histogram::Histogram;
use longhaul_wire::{Opcode, Position, Verb};

/// Operations of a requester.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Operation {
    Send,
    Write,
    Read,
    CmpSwap,
    FetchAdd,
}

impl Operation {
    pub const ALL: [Operation; 5] = [
        Operation::Send,
        Operation::Write,
        Operation::Read,
        Operation::CmpSwap,
        Operation::FetchAdd,
    ];

    pub fn of(opcode: Opcode) -> Option<Self> {
        Some(match opcode.verb()? {
            Verb::Send => Operation::Send,
            Verb::Write => Operation::Write,
            Verb::ReadRequest => Operation::Read,
            Verb::CmpSwap => Operation::CmpSwap,
            Verb::FetchAdd => Operation::FetchAdd,
            Verb::ReadResponse | Verb::Acknowledge | Verb::AtomicAcknowledge => return None,
        })
    }

    pub const fn name(self) -> &'static str {
        match self {
            Operation::Send => "SEND",
            Operation::Write => "WRITE",
            Operation::Read => "READ",
            Operation::CmpSwap => "CMP_SWAP",
            Operation::FetchAdd => "FETCH_ADD",
        }
    }

    pub const fn is_answered_one_by_one(self) -> bool {
        matches!(self, Operation::Read | Operation::CmpSwap | Operation::FetchAdd)
    }
}

/// Messages of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages {
    sizes: [Option<Box<Histogram>>; Operation::ALL.len()],
    /// Messages of unknown size.
    pub unsized_messages: u64,
    /// Bytes of the current message so far; `None` if its beginning was not seen.
    current: Option<u64>,
    /// Path MTU in bytes, once known.
    pub mtu: Option<u32>,
}

impl Messages {
    pub fn of(&self, operation: Operation) -> Option<&Histogram> {
        self.sizes[operation as usize].as_deref()
    }

    pub fn count(&self) -> u64 {
        self.unsized_messages
            + Operation::ALL.iter().filter_map(|&o| self.of(o)).map(Histogram::count).sum::<u64>()
    }

    /// Returns the flow's typical message size, over all operations.
    pub fn typical_size(&self) -> Option<u64> {
        let most = Operation::ALL.iter().filter_map(|&o| self.of(o)).max_by_key(|h| h.count())?;
        Some(most.quantile(0.5))
    }

    /// Records the payload of a first or middle packet: the path MTU.
    pub fn full_packet(&mut self, payload_len: u32) {
        if (256..=4096).contains(&payload_len) && payload_len.is_power_of_two() {
            self.mtu = Some(payload_len);
        }
    }

    /// Handles an in-order packet; `dma_len` is from its RETH.
    pub fn packet(
        &mut self,
        operation: Operation,
        position: Position,
        payload_len: u32,
        dma_len: Option<u32>,
    ) {
        if operation.is_answered_one_by_one() {
            let size = if operation == Operation::Read { dma_len } else { Some(8) };
            return self.add(operation, size.map(u64::from));
        }
        let payload = u64::from(payload_len);
        match position {
            Position::Only => self.add(operation, Some(payload)),
            Position::First => {
                self.full_packet(payload_len);
                self.current = Some(payload);
            }
            Position::Middle => {
                self.full_packet(payload_len);
                self.current = self.current.map(|so_far| so_far + payload);
            }
            Position::Last => {
                let size = self.current.take().map(|so_far| so_far + payload);
                self.add(operation, size);
            }
        }
    }

    /// Handles missing packets: the current message has unknown size.
    pub fn interrupted(&mut self) {
        self.current = None;
    }

    fn add(&mut self, operation: Operation, size: Option<u64>) {
        match size {
            Some(size) => self.sizes[operation as usize].get_or_insert_default().add(size),
            None => self.unsized_messages += 1,
        }
    }

    /// Returns the PSNs of a READ of `len` bytes; `None` if that depends on an unknown path MTU.
    pub fn read_span(&self, len: u32) -> Option<u32> {
        match self.mtu {
            _ if len <= 256 => Some(1),
            Some(mtu) => Some(len.div_ceil(mtu)),
            None => None,
        }
    }

    /// Records that a READ of `len` bytes took `span` PSNs. Returns whether a path MTU explains
    /// that.
    pub fn read_took(&mut self, len: u32, span: u32) -> bool {
        if let Some(mtu) = self.mtu {
            return len.div_ceil(mtu).max(1) == span;
        }
        let mtu =
            [256, 512, 1024, 2048, 4096].into_iter().find(|&mtu| len.div_ceil(mtu).max(1) == span);
        self.mtu = mtu.filter(|_| span > 1);
        mtu.is_some()
    }
}
