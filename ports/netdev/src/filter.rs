//! Kernel filters, which spare a program the cost of an interface's other traffic, and distribute
//! frames over several sockets.
//!
//! Classic BPF programs. The kernel strips a frame's outermost VLAN tag before it runs them; frames
//! with further tags pass, and the reader must check them.

use std::net::IpAddr;

use crate::bpf::{self, ETHERTYPE, Program, Target};
use libc::sock_filter;

/// The wanted frames of an interface: datagrams to one UDP port of one address, and to that port of
/// multicast groups.
///
/// IPv4 fragments and IPv6 packets with extension headers do not match.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// IP address of the receiver.
    pub ip: IpAddr,
    /// UDP port of the receiver.
    pub udp_port: u16,
    /// Also ARP, or neighbour solicitations and advertisements, as the address family requires.
    pub neighbours: bool,
}

const UDP: Target = Target::At("UDP");
const IP: u32 = 14;
const ICMPV6: u32 = 58;
const SOLICITATION: u32 = 135;
const ADVERTISEMENT: u32 = 136;
/// The "more fragments" flag and the fragment offset.
const IPV4_FRAGMENT: u32 = 0x3fff;
const IPV4_GROUPS: u32 = 0xe000_0000;
const IPV6_GROUPS: u32 = 0xff;

impl Wanted {
    /// The filter's instructions.
    pub(crate) fn program(&self) -> Vec<sock_filter> {
        let mut program = Program::default();
        program.add(bpf::LOAD_2, ETHERTYPE);
        for tag in [libc::ETH_P_8021Q, libc::ETH_P_8021AD] {
            program.jump(bpf::IF_EQUAL, tag as u32, Target::Take, Target::Next);
        }
        match self.ip {
            IpAddr::V4(ip) => self.over_ipv4(&mut program, ip.to_bits()),
            IpAddr::V6(ip) => self.over_ipv6(&mut program, ip.octets()),
        }
        program.assembled()
    }

    fn over_ipv4(&self, program: &mut Program, ip: u32) {
        if self.neighbours {
            program.jump(bpf::IF_EQUAL, libc::ETH_P_ARP as u32, Target::Take, Target::Next);
        }
        program.jump(bpf::IF_EQUAL, libc::ETH_P_IP as u32, Target::Next, Target::Drop);
        program.add(bpf::LOAD_1, IP + 9);
        program.jump(bpf::IF_EQUAL, libc::IPPROTO_UDP as u32, Target::Next, Target::Drop);
        program.add(bpf::LOAD_2, IP + 6);
        program.jump(bpf::IF_ANY, IPV4_FRAGMENT, Target::Drop, Target::Next);
        program.add(bpf::INDEX_BY_IPV4, IP);
        program.add(bpf::LOAD_2_INDEXED, IP + 2);
        program.jump(bpf::IF_EQUAL, self.udp_port.into(), Target::Next, Target::Drop);
        program.add(bpf::LOAD_4, IP + 16);
        program.jump(bpf::IF_EQUAL, ip, Target::Take, Target::Next);
        program.jump(bpf::IF_AT_LEAST, IPV4_GROUPS, Target::Take, Target::Drop);
    }

    fn over_ipv6(&self, program: &mut Program, ip: [u8; 16]) {
        program.jump(bpf::IF_EQUAL, libc::ETH_P_IPV6 as u32, Target::Next, Target::Drop);
        program.add(bpf::LOAD_1, IP + 6);
        if self.neighbours {
            program.jump(bpf::IF_EQUAL, libc::IPPROTO_UDP as u32, UDP, Target::Next);
            program.jump(bpf::IF_EQUAL, ICMPV6, Target::Next, Target::Drop);
            program.add(bpf::LOAD_1, IP + 40);
            program.jump(bpf::IF_EQUAL, SOLICITATION, Target::Take, Target::Next);
            program.jump(bpf::IF_EQUAL, ADVERTISEMENT, Target::Take, Target::Drop);
        } else {
            program.jump(bpf::IF_EQUAL, libc::IPPROTO_UDP as u32, Target::Next, Target::Drop);
        }
        program.place(UDP);
        program.add(bpf::LOAD_2, IP + 40 + 2);
        program.jump(bpf::IF_EQUAL, self.udp_port.into(), Target::Next, Target::Drop);
        program.add(bpf::LOAD_1, IP + 24);
        program.jump(bpf::IF_EQUAL, IPV6_GROUPS, Target::Take, Target::Next);
        for (word, at) in ip.as_chunks::<4>().0.iter().zip((IP + 24..).step_by(4)) {
            program.add(bpf::LOAD_4, at);
            program.jump(bpf::IF_EQUAL, u32::from_be_bytes(*word), Target::Next, Target::Drop);
        }
    }
}
