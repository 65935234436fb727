//! Classic BPF, whose programs the kernel runs per frame: instructions, and an assembler.
//!
//! Source: Linux, `Documentation/networking/filter.rst`.

use libc::sock_filter;

/// Load one, two or four bytes at an offset in the frame; load the frame's length. A load beyond
/// the frame drops it.
pub(crate) const LOAD_1: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
pub(crate) const LOAD_2: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
pub(crate) const LOAD_4: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
pub(crate) const LOAD_LENGTH: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_LEN) as u16;
/// Load the length of the IPv4 header at an offset into the index register; load two bytes relative
/// to it.
pub(crate) const INDEX_BY_IPV4: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
pub(crate) const LOAD_2_INDEXED: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
/// Store the accumulator in a memory cell; load a cell into the index register, or the accumulator;
/// load a constant; copy the accumulator to the index register.
pub(crate) const KEEP: u16 = libc::BPF_ST as u16;
pub(crate) const FETCH_INDEX: u16 = (libc::BPF_LDX | libc::BPF_MEM) as u16;
pub(crate) const FETCH: u16 = (libc::BPF_LD | libc::BPF_MEM) as u16;
pub(crate) const LOAD_CONSTANT: u16 = (libc::BPF_LD | libc::BPF_IMM) as u16;
pub(crate) const TO_INDEX: u16 = (libc::BPF_MISC | libc::BPF_TAX) as u16;
/// Arithmetic with a constant, and with the index register.
pub(crate) const MULTIPLY: u16 = (libc::BPF_ALU | libc::BPF_MUL | libc::BPF_K) as u16;
pub(crate) const AND: u16 = (libc::BPF_ALU | libc::BPF_AND | libc::BPF_K) as u16;
pub(crate) const SHIFT_RIGHT_BY_INDEX: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_X) as u16;
pub(crate) const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
pub(crate) const REMAINDER: u16 = (libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K) as u16;
pub(crate) const XOR_INDEX: u16 = (libc::BPF_ALU | libc::BPF_XOR | libc::BPF_X) as u16;
pub(crate) const ADD_INDEX: u16 = (libc::BPF_ALU | libc::BPF_ADD | libc::BPF_X) as u16;
/// Jump if equal, if greater or equal, if any of these bits is set, always.
pub(crate) const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ) as u16;
pub(crate) const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE) as u16;
pub(crate) const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET) as u16;
pub(crate) const ALWAYS: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const END: u16 = libc::BPF_RET as u16;

/// Offset of a frame's EtherType.
pub(crate) const ETHERTYPE: u32 = 12;

/// Target of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    /// The next instruction.
    Next,
    /// The next place with this name.
    At(&'static str),
    /// The end that accepts the frame.
    Take,
    /// The end that drops the frame.
    Drop,
}

/// Instructions and jump targets. Jumps only go forward; a program that runs to its end accepts the
/// frame.
#[derive(Default)]
pub(crate) struct Program {
    code: Vec<(sock_filter, [Target; 2])>,
    places: Vec<(Target, usize)>,
}

impl Program {
    /// Appends an instruction other than a jump.
    pub(crate) fn add(&mut self, code: u16, k: u32) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k }, [Target::Next; 2]));
    }

    pub(crate) fn jump(&mut self, code: u16, with: u32, if_so: Target, if_not: Target) {
        self.code.push((sock_filter { code, jt: 0, jf: 0, k: with }, [if_so, if_not]));
    }

    /// Makes the next instruction this target.
    pub(crate) fn place(&mut self, target: Target) {
        self.places.push((target, self.code.len()));
    }

    /// Appends the two ends, and resolves jumps.
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
                    // Programs are short enough for 8-bit distances, as their tests check.
                    (instruction.jt, instruction.jf) =
                        (distance(at, if_so) as u8, distance(at, if_not) as u8);
                }
                instruction
            };
        self.code.iter().enumerate().map(resolved).collect()
    }
}
