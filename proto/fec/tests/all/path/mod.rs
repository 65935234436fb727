//! Datagrams between an encoder and a decoder, and loss models for them.

use longhaul_fec::{Body, Decoder, DecoderConfig, Encoder, HEAD_MAX, Parity, ParityId, Symbol};
use longhaul_units::{Rng, SplitMix64};
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Content {
    Bytes(Vec<u8>),
    Virtual(usize),
}

impl Content {
    pub fn of(body: &Body<'_>) -> Self {
        match body {
            Body::Bytes(pieces) => Content::Bytes(pieces.concat()),
            Body::Virtual(len) => Content::Virtual(*len),
        }
    }

    /// In three pieces, as a payload can be in memory.
    pub fn body(&self) -> Body<'_> {
        match self {
            Content::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(bytes.len() / 3);
                let (second, third) = rest.split_at(rest.len() / 4);
                Body::Bytes([first, second, third])
            }
            Content::Virtual(len) => Body::Virtual(*len),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    pub head: Vec<u8>,
    pub body: Content,
}

impl Datagram {
    pub fn random(rng: &mut SplitMix64, body_len_max: usize) -> Rc<Self> {
        let mut bytes = |len: u64| (0..len).map(|_| rng.next_u64() as u8).collect::<Vec<u8>>();
        let (head_len, body_len) = (bytes(1)[0] % 193, bytes(1)[0]);
        // The ends of the range are as likely as all other values together.
        let body_len = match body_len {
            0..64 => 0,
            64..128 => body_len_max,
            _ => usize::from(body_len - 128) * body_len_max / 128,
        };
        Rc::new(Datagram {
            head: bytes(head_len.into()),
            body: Content::Bytes(bytes(body_len as u64)),
        })
    }

    pub fn synthetic(rng: &mut SplitMix64) -> Rc<Self> {
        let head = (0..rng.below(193)).map(|_| rng.next_u64() as u8).collect();
        Rc::new(Datagram { head, body: Content::Virtual(rng.below(9000) as usize) })
    }
}

pub struct Held(pub Rc<Datagram>);

impl Symbol for Held {
    fn head(&self, out: &mut [u8; HEAD_MAX]) -> usize {
        out[..self.0.head.len()].copy_from_slice(&self.0.head);
        self.0.head.len()
    }

    fn body(&self) -> Body<'_> {
        self.0.body.body()
    }
}

/// A datagram on the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sent {
    Data(u64),
    Parity { id: ParityId, bytes: Vec<u8>, body: Content },
}

/// Takes the due parities out of `encoder`.
pub fn drain(encoder: &mut Encoder, sent: &mut Vec<Sent>) {
    while let Some(parity) = encoder.next_parity() {
        let bytes = [&parity.header()[..], parity.head].concat();
        sent.push(Sent::Parity { id: parity.id, bytes, body: Content::of(&parity.body) });
    }
}

pub fn encode(encoder: &mut Encoder, first: u64, data: &[Rc<Datagram>]) -> Vec<Sent> {
    let mut sent = Vec::new();
    for (number, datagram) in (first..).zip(data) {
        let due = encoder.add(number, &datagram.head, &datagram.body.body()).unwrap();
        sent.push(Sent::Data(number));
        if due > 0 {
            drain(encoder, &mut sent);
        }
    }
    sent
}

/// The far end, which knows the sent datagrams and checks recovered ones against them.
pub struct Receiver {
    pub decoder: Decoder<Held>,
    pub sent: BTreeMap<u64, Rc<Datagram>>,
    pub arrived: Vec<u64>,
    pub recovered: Vec<u64>,
}

impl Receiver {
    pub fn new(config: DecoderConfig) -> Self {
        let decoder = Decoder::new(config);
        Receiver { decoder, sent: BTreeMap::new(), arrived: Vec::new(), recovered: Vec::new() }
    }

    pub fn expect(&mut self, first: u64, data: &[Rc<Datagram>]) {
        self.sent.extend((first..).zip(data.iter().cloned()));
    }

    pub fn take(&mut self, sent: &Sent) {
        let Receiver { decoder, sent: expected, recovered, arrived } = self;
        if let Sent::Data(number) = sent {
            arrived.push(*number);
        }
        let back = |back: longhaul_fec::Recovered<'_>| {
            assert!(!arrived.contains(&back.number), "{} had arrived", back.number);
            assert!(!recovered.contains(&back.number), "{} came back twice", back.number);
            let datagram = Datagram { head: back.head.to_vec(), body: Content::of(&back.body) };
            let sent = &expected[&back.number];
            assert_eq!(datagram.head, sent.head, "head of {}", back.number);
            // The kind of an empty body is irrelevant.
            let are_empty = back.body.is_empty() && sent.body.body().is_empty();
            assert!(are_empty || datagram.body == sent.body, "body of {}", back.number);
            recovered.push(back.number);
        };
        match sent {
            Sent::Data(number) => {
                decoder.on_data(*number, Held(expected[number].clone()), back);
            }
            Sent::Parity { bytes, body, .. } => {
                let (id, head, rest) = Parity::parse(bytes).unwrap();
                assert!(rest.is_empty());
                decoder.on_parity(&Parity { id, head, body: body.body() }, back).unwrap();
            }
        }
    }

    /// Numbers that neither arrived nor were recovered.
    pub fn missing(&self) -> Vec<u64> {
        let mut have: Vec<_> = self.arrived.iter().chain(&self.recovered).copied().collect();
        have.sort_unstable();
        self.sent.keys().copied().filter(|number| have.binary_search(number).is_err()).collect()
    }
}
