//! The side that answers probes.
//!
//! A reply is a header of fixed length, never longer than its request; a reply is never answered.
//! Hence neither forged sender addresses nor two answering sides amplify traffic.

use crate::problem::Problem;
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

/// First bytes of every datagram; the last one is the version.
const MAGIC: [u8; 4] = *b"LHP\x01";

/// Request or reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeKind {
    Request = 1,
    Reply = 2,
}

/// Head of a request, and all of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: ProbeKind,
    /// Identifies one run of the probing side.
    pub session: u64,
    /// Number of the request.
    pub number: u32,
}

impl Header {
    pub const LEN: usize = 20;

    /// Writes the header into `datagram`, which has at least [`Header::LEN`] bytes.
    pub fn write(self, datagram: &mut [u8]) {
        datagram[..4].copy_from_slice(&MAGIC);
        datagram[4..8].copy_from_slice(&[self.kind as u8, 0, 0, 0]);
        datagram[8..16].copy_from_slice(&self.session.to_be_bytes());
        datagram[16..20].copy_from_slice(&self.number.to_be_bytes());
    }

    /// Parses the header of a probe or reply.
    pub fn read(datagram: &[u8]) -> Option<Self> {
        let head: &[u8; Header::LEN] = datagram.first_chunk()?;
        let kind = match head[4] {
            1 => ProbeKind::Request,
            2 => ProbeKind::Reply,
            _ => return None,
        };
        let session = u64::from_be_bytes(*head[8..].first_chunk()?);
        let number = u32::from_be_bytes(*head[16..].first_chunk()?);
        (head[..4] == MAGIC).then_some(Header { kind, session, number })
    }
}

/// The reply to a datagram, if it is a request.
pub fn to(datagram: &[u8]) -> Option<[u8; Header::LEN]> {
    let request = Header::read(datagram).filter(|header| header.kind == ProbeKind::Request)?;
    let mut answer = [0; Header::LEN];
    Header { kind: ProbeKind::Reply, ..request }.write(&mut answer);
    Some(answer)
}

/// Answers on `port` until the process ends.
pub fn run(port: u16) -> Result<(), Problem> {
    // On an unspecified IPv6 address Linux also receives IPv4; without IPv6 only IPv4 remains.
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|e| match e.kind() {
            ErrorKind::AddrInUse | ErrorKind::PermissionDenied => Err(e),
            _ => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)),
        })
        .map_err(|e| match e.kind() {
            ErrorKind::AddrInUse => {
                Problem::new(format!("UDP port {port} is taken"), "choose another: --answer PORT")
            }
            _ => Problem::plain(format!("cannot listen on UDP port {port}: {e}")),
        })?;
    eprintln!("answering probes on UDP port {port}; Ctrl-C ends");
    let e = serve(&socket);
    Err(Problem::plain(format!("cannot continue to answer: {e}")))
}

/// Answers until the socket fails.
pub fn serve(socket: &UdpSocket) -> io::Error {
    let mut datagram = vec![0; 65_536];
    loop {
        match socket.recv_from(&mut datagram) {
            Ok((length, from)) => {
                if let Some(answer) = to(&datagram[..length]) {
                    // A requester at an unreachable address gets no reply.
                    let _ = socket.send_to(&answer, from);
                }
            }
            // An earlier reply was refused, or a signal arrived.
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::Interrupted) => {
            }
            Err(e) => return e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(length: usize) -> Vec<u8> {
        let mut datagram = vec![0xff; length];
        Header { kind: ProbeKind::Request, session: 7, number: 9 }.write(&mut datagram);
        datagram
    }

    #[test]
    fn answers_are_never_longer_than_their_questions() {
        for length in [Header::LEN, 100, 9000] {
            let answer = to(&request(length)).unwrap();
            assert!(answer.len() <= length);
            assert_eq!(
                Header::read(&answer),
                Some(Header { kind: ProbeKind::Reply, session: 7, number: 9 })
            );
        }
    }

    #[test]
    fn answers_and_foreign_datagrams_are_not_answered() {
        assert_eq!(to(&to(&request(50)).unwrap()), None);
        assert_eq!(to(&request(50)[..Header::LEN - 1]), None);
        assert_eq!(to(&[0; 100]), None);
        let mut other = request(50);
        other[3] = 2;
        assert_eq!(to(&other), None);
        let mut kind = request(50);
        kind[4] = 3;
        assert_eq!(to(&kind), None);
    }
}
