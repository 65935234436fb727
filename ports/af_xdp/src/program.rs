//! The XDP program, which selects the frames for the port's sockets.
//!
//! eBPF instructions (RFC 9669), assembled here. Frames that the program does not understand stay
//! with the kernel.

use crate::config::Wanted;

/// One instruction in the kernel's format.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

/// Registers: return value, arguments of calls, and callee-saved ones.
const R0: u8 = 0;
const R1: u8 = 1;
const R2: u8 = 2;
const R3: u8 = 3;
/// Scratch.
const R4: u8 = 4;
const VALUE: u8 = 5;
const CONTEXT: u8 = 6;
/// Offset of the next header.
const AT: u8 = 7;
const LIMIT: u8 = 8;
const END: u8 = 9;

const LOAD_1: u8 = 0x71;
const LOAD_2: u8 = 0x69;
const LOAD_4: u8 = 0x61;
const LOAD_MAP: u8 = 0x18;
const MOVE: u8 = 0xbf;
const MOVE_NUMBER: u8 = 0xb7;
const ADD: u8 = 0x0f;
const ADD_NUMBER: u8 = 0x07;
const AND_NUMBER: u8 = 0x57;
const SHIFT_LEFT: u8 = 0x67;
const JUMP: u8 = 0x05;
const IF_EQUAL: u8 = 0x15;
const IF_NOT_EQUAL: u8 = 0x55;
const IF_BELOW: u8 = 0xa5;
const IF_ANY_BIT: u8 = 0x45;
const IF_BEHIND: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

const REDIRECT_BY_MAP: i32 = 51;
/// Verdict: the kernel receives the frame.
pub(crate) const PASS: i32 = 2;
/// Verdict: a socket receives the frame.
#[cfg(test)]
pub(crate) const REDIRECT: i32 = 4;

/// Fields of `xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const QUEUE: i16 = 16;

const ETHERNET_BYTES: i32 = 14;
const TAG_BYTES: i32 = 4;
const TAGS_MAX: usize = 2;
const ETHERTYPES_VLAN: [u16; 2] = [0x8100, 0x88a8];
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
const PROTOCOL_UDP: i32 = 17;
/// The "more fragments" flag and the fragment offset.
const IPV4_FRAGMENT: u16 = 0x3fff;

/// Target of a jump.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Label {
    Tagged(usize),
    Untagged(usize),
    Ipv4,
    Ipv6,
    Udp,
    Take,
    Leave,
}

#[derive(Default)]
struct Assembler {
    code: Vec<Instruction>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn push(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        let registers =
            if cfg!(target_endian = "little") { to | from << 4 } else { to << 4 | from };
        self.code.push(Instruction { code, registers, offset, immediate });
    }

    fn load(&mut self, code: u8, to: u8, from: u8, offset: i16) {
        self.push(code, to, from, offset, 0);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.push(MOVE, to, from, 0, 0);
    }

    fn number(&mut self, code: u8, to: u8, number: i32) {
        self.push(code, to, 0, 0, number);
    }

    fn jump(&mut self, code: u8, register: u8, number: i32, label: Label) {
        self.jumps.push((self.code.len(), label));
        self.push(code, register, 0, 0, number);
    }

    fn place(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Passes the frame to the kernel unless it has `bytes` from [`AT`] on.
    fn needs(&mut self, bytes: i32) {
        self.copy(LIMIT, AT);
        self.number(ADD_NUMBER, LIMIT, bytes);
        self.jumps.push((self.code.len(), Label::Leave));
        self.push(IF_BEHIND, LIMIT, END, 0, 0);
    }

    fn assembled(mut self) -> Vec<Instruction> {
        for (at, label) in self.jumps {
            let target = self.labels.iter().find(|(placed, _)| *placed == label);
            let (_, target) = target.expect("every label that is jumped to is placed");
            self.code[at].offset = (*target as i64 - at as i64 - 1) as i16;
        }
        self.code
    }
}

/// The value that a two-byte load yields for a word of a frame.
fn on_wire(word: u16) -> i32 {
    i32::from(u16::from_ne_bytes(word.to_be_bytes()))
}

/// The program that redirects `wanted` frames to the sockets of `map`, a descriptor number.
pub(crate) fn program(wanted: Wanted, map: i32) -> Vec<Instruction> {
    let mut code = Assembler::default();
    if wanted == Wanted::Roce {
        code.copy(CONTEXT, R1);
        pick_udp(&mut code, &Wanted::UDP_PORTS);
        code.place(Label::Take);
        code.copy(R1, CONTEXT);
    }
    code.load(LOAD_4, R2, R1, QUEUE);
    // The source register marks the number as a descriptor of a map; 64 bits take two instructions.
    code.push(LOAD_MAP, R1, 1, 0, map);
    code.push(0, 0, 0, 0, 0);
    // Verdict on frames of queues without a socket.
    code.number(MOVE_NUMBER, R3, PASS);
    code.number(CALL, 0, REDIRECT_BY_MAP);
    code.number(EXIT, 0, 0);
    if wanted == Wanted::Roce {
        code.place(Label::Leave);
        code.number(MOVE_NUMBER, R0, PASS);
        code.number(EXIT, 0, 0);
    }
    code.assembled()
}

/// Falls through to [`Label::Take`] for UDP datagrams to one of `ports`; jumps to [`Label::Leave`]
/// for others.
fn pick_udp(code: &mut Assembler, ports: &[u16]) {
    code.load(LOAD_4, AT, CONTEXT, DATA);
    code.load(LOAD_4, END, CONTEXT, DATA_END);
    code.needs(ETHERNET_BYTES);
    code.load(LOAD_2, VALUE, AT, 12);
    code.number(ADD_NUMBER, AT, ETHERNET_BYTES);
    for tag in 0..TAGS_MAX {
        for ethertype in ETHERTYPES_VLAN {
            code.jump(IF_EQUAL, VALUE, on_wire(ethertype), Label::Tagged(tag));
        }
        code.jump(JUMP, 0, 0, Label::Untagged(tag));
        code.place(Label::Tagged(tag));
        code.needs(TAG_BYTES);
        code.load(LOAD_2, VALUE, AT, 2);
        code.number(ADD_NUMBER, AT, TAG_BYTES);
        code.place(Label::Untagged(tag));
    }
    code.jump(IF_EQUAL, VALUE, on_wire(ETHERTYPE_IPV4), Label::Ipv4);
    code.jump(IF_EQUAL, VALUE, on_wire(ETHERTYPE_IPV6), Label::Ipv6);
    code.jump(JUMP, 0, 0, Label::Leave);

    code.place(Label::Ipv4);
    code.needs(20);
    code.load(LOAD_1, VALUE, AT, 9);
    code.jump(IF_NOT_EQUAL, VALUE, PROTOCOL_UDP, Label::Leave);
    code.load(LOAD_2, VALUE, AT, 6);
    code.jump(IF_ANY_BIT, VALUE, on_wire(IPV4_FRAGMENT), Label::Leave);
    code.load(LOAD_1, R4, AT, 0);
    code.number(AND_NUMBER, R4, 0xf);
    code.jump(IF_BELOW, R4, 5, Label::Leave);
    code.number(SHIFT_LEFT, R4, 2);
    code.push(ADD, AT, R4, 0, 0);
    code.jump(JUMP, 0, 0, Label::Udp);

    code.place(Label::Ipv6);
    code.needs(40);
    code.load(LOAD_1, VALUE, AT, 6);
    code.jump(IF_NOT_EQUAL, VALUE, PROTOCOL_UDP, Label::Leave);
    code.number(ADD_NUMBER, AT, 40);

    code.place(Label::Udp);
    code.needs(8);
    code.load(LOAD_2, VALUE, AT, 2);
    for port in ports {
        code.jump(IF_EQUAL, VALUE, on_wire(*port), Label::Take);
    }
    code.jump(JUMP, 0, 0, Label::Leave);
}
