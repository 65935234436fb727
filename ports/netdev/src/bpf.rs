//! Programs of classic BPF, which the kernel runs for each frame: instructions, and an assembler.
//!
//! Source: Linux, `Documentation/networking/filter.rst`.

use libc::sock_filter;

/// Load a byte, two, or four, from a place in the frame; its length. A load from outside the frame
/// drops it.
pub(crate) const LOAD_1: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
pub(crate) const LOAD_2: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
pub(crate) const LOAD_4: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(crate) const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
/// The length of the IPv4 header at a place, into the index; two bytes from there on.
pub(crate) const INDEX_BY_IPV4: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
pub(crate) const LOAD_2_INDEXED: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
/// Keep the number in a cell, fetch it into the index, and fetch it; load a constant; make the
/// number the index.
pub(crate) const KEEP: u16 = libc::BPF_ST as u16;
pub(crate) const FETCH_INDEX: u16 = (libc::BPF_LDX | libc::BPF_MEM) as u16;
pub(crate) const FETCH: u16 = (libc::BPF_LD | libc::BPF_MEM) as u16;
pub(crate) const LOAD_CONSTANT: u16 = (libc::BPF_LD | libc::BPF_IMM) as u16;
pub(crate) const TO_INDEX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
/// Arithmetic with a constant, and with the index.
pub(crate) const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
pub(crate) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub(crate) const SHIFT_RIGHT_BY_INDEX: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_X) as u16;
pub(crate) const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
pub(crate) const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
pub(crate) const XOR_INDEX: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
pub(crate) const ADD_INDEX: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
/// Jump if equal, if at least, if any of these bits is set, always.
pub(crate) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ) as u16;
pub(crate) const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE) as u16;
pub(crate) const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET) as u16;
pub(crate) const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const END: u16 = libc::BPF_RET as u16;

/// Where the EtherType stands in a frame.
pub(crate) const ETHERTYPE: u32 = 12;

/// Where jumps go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The next instruction.
    Next,
    /// The next place of this name.
    At(&'static str),
    /// The end that takes the frame.
    Take,
    /// The end that drops it.
    Drop,
}

/// Instructions, and the places that jumps go to, which are all behind them. What comes to the end
/// of them is taken.
#[derive(Default)]
pub(crate) struct Program {
    code: Vec<(sock_filter, [Target; 2])>,
    places: Vec<(Target, usize)>,
}

impl Program {
    /// An instruction that is no jump.
    pub(crate) fn add(&mut self, code: u16, k: u32) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k }, [Target::Next; 2]));
    }

    pub(crate) fn jump(&mut self, code: u16, with: u32, if_so: Target, if_not: Target) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k: with }, [if_so, if_not]));
    }

    /// The next instruction is this target.
    pub(crate) fn place(&mut self, target: Target) {
        self.places.push((target, self.code.len()));
    }

    /// With the two ends, and the distances of jumps.
    pub(crate) fn assembled(mut self) -> Vec<sock_filter> {
        self.place(Target::Take);
        self.add(END, u32::MAX);
        self.place(Target::Drop);
        self.add(END, 0);
        let distance = |from: usize, to: Target| {
            let place = self.places.iter().find(|(target, at)| *target == to && *at > from);
            place.map_or(0, |(_, at)| at - from - 1)
        };
        let resolved =
            |(at, &(mut instruction, [if_so, if_not])): (usize, &(sock_filter, [Target; 2]))| {
                if instruction.code == ALWAYS {
                    instruction.k = distance(at, if_so) as u32;
                } else {
                    // Programs are short enough, as their tests see.
                    (instruction.jt, instruction.jf) =
                        (distance(at, if_so) as u8, distance(at, if_not) as u8);
                }
                instruction
            };
        self.code.iter().enumerate().map(resolved).collect()
    }
}
