//! The plan of a run's programs, derived from the seed and known to both ends, so that each can
//! check the other.

use longhaul_units::{Psn, Rng, SplitMix64};

/// Kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Send,
    SendImmediate,
    Write,
    WriteImmediate,
    Read,
    FetchAdd { add: u64 },
    CompareSwap { compare: u64, swap: u64 },
}

impl Kind {
    pub fn takes_receive(self) -> bool {
        matches!(self, Kind::Send | Kind::SendImmediate | Kind::WriteImmediate)
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Kind::FetchAdd { .. } | Kind::CompareSwap { .. })
    }

    /// True if it writes bytes to the responder's memory.
    pub fn places(self) -> bool {
        !matches!(self, Kind::Read) && !self.is_atomic()
    }

    /// True if it writes bytes to the requester's memory.
    pub fn fetches(self) -> bool {
        !self.places()
    }
}

/// The operations of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mix {
    Writes,
    /// Random WRITEs, and one READ in eight.
    WritesAndReads,
    SendsAndWrites,
    Everything,
}

/// One message.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    pub kind: Kind,
    pub len: u32,
    /// Index of the receive that it consumes, or that the next one consumes.
    pub receive: usize,
    /// For an atomic: the word's value before it.
    pub before: u64,
}

impl Message {
    /// Immediate data in network order, different for each message.
    pub fn immediate(&self, index: usize) -> Option<[u8; 4]> {
        let immediate = matches!(self.kind, Kind::SendImmediate | Kind::WriteImmediate);
        immediate.then(|| (index as u32 ^ 0x5a00_0000).to_be_bytes())
    }
}

/// The requests of one direction of one QP, over all its lives.
pub struct Stream {
    pub messages: Vec<Message>,
    /// By receive: the message that consumes it.
    pub receives: Vec<usize>,
    /// Messages of each life.
    per_life: usize,
}

impl Stream {
    pub fn draw(seed: u64, mix: Mix, per_life: usize, lives: usize, size_max: u32) -> Stream {
        let mut rng = SplitMix64::new(seed);
        let (mut messages, mut receives) = (Vec::new(), Vec::new());
        for life in 0..lives {
            let mut word = 0u64;
            for _ in 0..per_life {
                let kind = draw_kind(&mut rng, mix, word);
                let len = if kind.is_atomic() { 8 } else { draw_len(&mut rng, size_max) };
                let before = word;
                match kind {
                    Kind::FetchAdd { add } => word = word.wrapping_add(add),
                    Kind::CompareSwap { compare, swap } if compare == word => word = swap,
                    _ => {}
                }
                let receive = receives.len();
                if kind.takes_receive() {
                    receives.push(messages.len());
                }
                messages.push(Message { kind, len, receive, before });
            }
            debug_assert_eq!(messages.len(), (life + 1) * per_life);
        }
        Stream { messages, receives, per_life }
    }

    pub fn first_of(&self, life: usize) -> usize {
        self.per_life * life
    }

    pub fn life_of(&self, message: usize) -> usize {
        message / self.per_life.max(1)
    }

    /// Index of the first receive of a life, and of the next life.
    pub fn receives_of(&self, life: usize) -> [usize; 2] {
        [life, life + 1]
            .map(|life| self.receives.partition_point(|&message| message < self.first_of(life)))
    }

    /// The word of a life after all its atomics.
    pub fn word_after(&self, life: usize) -> u64 {
        let messages = &self.messages[self.first_of(life)..self.first_of(life + 1)];
        messages.iter().rev().find(|m| m.kind.is_atomic()).map_or(0, |m| match m.kind {
            Kind::FetchAdd { add } => m.before.wrapping_add(add),
            Kind::CompareSwap { compare, swap } if compare == m.before => swap,
            _ => m.before,
        })
    }
}

fn draw_kind(rng: &mut SplitMix64, mix: Mix, word: u64) -> Kind {
    let everything = |rng: &mut SplitMix64| match rng.below(8) {
        0 | 1 => Kind::Write,
        2 => Kind::WriteImmediate,
        3 => Kind::Send,
        4 => Kind::SendImmediate,
        5 => Kind::Read,
        6 => Kind::FetchAdd { add: rng.next_u64() },
        _ => {
            let compare = if rng.chance(0.5) { word } else { rng.next_u64() };
            Kind::CompareSwap { compare, swap: rng.next_u64() }
        }
    };
    match mix {
        Mix::Writes => Kind::Write,
        Mix::WritesAndReads => match rng.below(8) {
            0 => Kind::Read,
            _ => Kind::Write,
        },
        Mix::SendsAndWrites => match rng.below(2) {
            0 => Kind::Send,
            _ => Kind::Write,
        },
        Mix::Everything => everything(rng),
    }
}

/// A random length: short, long or zero.
fn draw_len(rng: &mut SplitMix64, max: u32) -> u32 {
    let up_to = match rng.below(8) {
        0 => 0,
        1 | 2 => 64.min(max),
        3 | 4 => 8192.min(max),
        _ => max,
    };
    rng.below(u64::from(up_to) + 1) as u32
}

/// Both directions of each QP, by requesting host.
pub struct Plan {
    pub streams: Vec<[Stream; 2]>,
    /// Bytes between the places of two messages.
    pub stride: u64,
    pub seed: u64,
    /// Lives begin at one of so many PSNs by turns, each this far behind the previous one; random
    /// if `None`.
    pub psn_step: Option<(usize, i32)>,
    pub are_alike: bool,
}

impl Plan {
    /// The first PSN of a host's requests on a QP in a life.
    pub fn first_psn(&self, qp: usize, host: usize, life: usize) -> Psn {
        let drawn_for = if self.are_alike { 0 } else { qp };
        let drawn = |life| self.number(drawn_for, host, life, 1) as u32;
        let first = match self.psn_step {
            None => drawn(life),
            Some((places, step)) => drawn(life % places).wrapping_add_signed(step * life as i32),
        };
        Psn::new(first & 0xff_ffff)
    }

    /// A pseudo-random number for one end of a QP in a life.
    pub fn number(&self, qp: usize, host: usize, life: usize, what: u64) -> u64 {
        let at = (qp as u64) << 32 | (life as u64) << 16 | (host as u64) << 8 | what;
        SplitMix64::new(self.seed ^ at.wrapping_mul(0x9e6c_63d0_876a_3f6b)).next_u64()
    }
}
