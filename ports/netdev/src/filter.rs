//! Filters in the kernel: so that a program on an interface of this machine costs nothing for the machine's other traffic,
//! and so that each of several sockets gets its part of the frames.
//!
//! A program of classic BPF. The kernel takes a frame's outermost VLAN tag off before it runs; frames with further ones
//! pass, and are looked at by whoever wanted the others. Source: Linux, `Documentation/networking/filter.rst`.

use std::net::IpAddr;

use libc::sock_filter;

/// What is wanted of the frames of an interface: the datagrams to one UDP port of one address, and to that port of groups.
///
/// An IPv4 fragment is none of them, and neither is an IPv6 packet with extension headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Address of the receiver.
    pub ip: IpAddr,
    /// UDP port of the receiver.
    pub udp_port: u16,
    /// ARP as well, or IPv6's neighbour solicitations and advertisements: whatever the address's family has.
    pub neighbours: bool,
}

/// Load two bytes, a byte, or four, from a place in the frame.
const LOAD_2: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_1: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const LOAD_4: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
/// The length of the IPv4 header at a place, into the index; two bytes from there on.
const INDEX_BY_IPV4: u16 = (libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH) as u16;
const LOAD_2_INDEXED: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_IND) as u16;
/// Jump if equal, if at least, if any of these bits is set.
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ) as u16;
const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE) as u16;
const IF_ANY: u16 = (libc::BPF_JMP | libc::BPF_JSET) as u16;
const END: u16 = libc::BPF_RET as u16;

/// Targets of jumps: the next instruction, and the two ends.
const NEXT: u8 = 0;
const TAKE: u8 = 254;
const DROP: u8 = 255;

const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const ICMPV6: u32 = 58;
const SOLICITATION: u32 = 135;
const ADVERTISEMENT: u32 = 136;
/// "More fragments", and the offset of one.
const IPV4_FRAGMENT: u32 = 0x3fff;
const IPV4_GROUPS: u32 = 0xe000_0000;
const IPV6_GROUPS: u32 = 0xff;

impl Wanted {
    /// As instructions.
    pub(crate) fn program(&self) -> Vec<sock_filter> {
        let mut program = Program(Vec::new());
        program.load(LOAD_2, ETHERTYPE);
        for tag in [libc::ETH_P_8021Q, libc::ETH_P_8021AD] {
            program.jump(IF_EQUAL, tag as u32, TAKE, NEXT);
        }
        match self.ip {
            IpAddr::V4(ip) => self.over_ipv4(&mut program, ip.to_bits()),
            IpAddr::V6(ip) => self.over_ipv6(&mut program, ip.octets()),
        }
        program.assembled()
    }

    fn over_ipv4(&self, program: &mut Program, ip: u32) {
        if self.neighbours {
            program.jump(IF_EQUAL, libc::ETH_P_ARP as u32, TAKE, NEXT);
        }
        program.jump(IF_EQUAL, libc::ETH_P_IP as u32, NEXT, DROP);
        program.load(LOAD_1, IP + 9);
        program.jump(IF_EQUAL, libc::IPPROTO_UDP as u32, NEXT, DROP);
        program.load(LOAD_2, IP + 6);
        program.jump(IF_ANY, IPV4_FRAGMENT, DROP, NEXT);
        program.load(INDEX_BY_IPV4, IP);
        program.load(LOAD_2_INDEXED, IP + 2);
        program.jump(IF_EQUAL, self.udp_port.into(), NEXT, DROP);
        program.load(LOAD_4, IP + 16);
        program.jump(IF_EQUAL, ip, TAKE, NEXT);
        program.jump(IF_AT_LEAST, IPV4_GROUPS, TAKE, DROP);
    }

    fn over_ipv6(&self, program: &mut Program, ip: [u8; 16]) {
        program.jump(IF_EQUAL, libc::ETH_P_IPV6 as u32, NEXT, DROP);
        program.load(LOAD_1, IP + 6);
        if self.neighbours {
            // Over the four that are about neighbours.
            program.jump(IF_EQUAL, libc::IPPROTO_UDP as u32, 4, NEXT);
            program.jump(IF_EQUAL, ICMPV6, NEXT, DROP);
            program.load(LOAD_1, IP + 40);
            program.jump(IF_EQUAL, SOLICITATION, TAKE, NEXT);
            program.jump(IF_EQUAL, ADVERTISEMENT, TAKE, DROP);
        } else {
            program.jump(IF_EQUAL, libc::IPPROTO_UDP as u32, NEXT, DROP);
        }
        program.load(LOAD_2, IP + 40 + 2);
        program.jump(IF_EQUAL, self.udp_port.into(), NEXT, DROP);
        program.load(LOAD_1, IP + 24);
        program.jump(IF_EQUAL, IPV6_GROUPS, TAKE, NEXT);
        for (word, at) in ip.as_chunks::<4>().0.iter().zip((IP + 24..).step_by(4)) {
            program.load(LOAD_4, at);
            program.jump(IF_EQUAL, u32::from_be_bytes(*word), NEXT, DROP);
        }
    }
}

/// Instructions that go on at the next one or where a jump says. What comes to the end of them is taken.
struct Program(Vec<sock_filter>);

impl Program {
    /// A load from outside the frame drops it.
    fn load(&mut self, code: u16, at: u32) {
        self.0.push(sock_filter { code, jt: 0, jf: 0, k: at });
    }

    fn jump(&mut self, code: u16, with: u32, if_so: u8, if_not: u8) {
        self.0.push(sock_filter { code, jt: if_so, jf: if_not, k: with });
    }

    /// With the two ends, and jumps to them.
    fn assembled(self) -> Vec<sock_filter> {
        let mut code = self.0;
        let take = code.len();
        for (at, instruction) in code.iter_mut().enumerate() {
            for target in [&mut instruction.jt, &mut instruction.jf] {
                match *target {
                    TAKE => *target = (take - at - 1) as u8,
                    DROP => *target = (take - at) as u8,
                    _ => {}
                }
            }
        }
        let end = |bytes: u32| sock_filter { code: END, jt: 0, jf: 0, k: bytes };
        code.extend([end(u32::MAX), end(0)]);
        code
    }
}
