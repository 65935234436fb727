//! Receiving half of parity, for one path: holds datagrams until their group is complete or given
//! up.

use crate::format::{ProtectedHeader, symbol_body};
use longhaul_fec::{Body, Decoder, DecoderConfig, HEAD_MAX, Parity, Recovered, Refusal, Symbol};
use longhaul_node::FrameBuf;

/// Numbers within which repair is possible: twice the longest block.
const REACH: usize = 16_384;
/// Numbers within which datagrams are held while no parity arrives.
const QUIET_REACH: usize = 256;
/// Maximum number of parities kept for incomplete groups: two of the widest blocks'.
const PARITIES_MAX: usize = 1024;
/// Numbers without any parity after which all memory is released.
const IDLE_NUMBERS: u64 = 16 * REACH as u64;

/// A numbered datagram that arrived.
struct Held {
    protected: ProtectedHeader,
    frame: Option<FrameBuf>,
}

impl Symbol for Held {
    fn head(&self, out: &mut [u8; HEAD_MAX]) -> usize {
        self.protected.write_head(self.frame.as_ref().map(FrameBuf::as_frame).as_ref(), out)
    }

    fn body(&self) -> Body<'_> {
        match &self.frame {
            Some(frame) if frame.payload().is_empty() => symbol_len(frame),
            Some(frame) => Body::bytes(frame.payload()),
            None => Body::EMPTY,
        }
    }
}

/// Symbol body of a frame without bytes: empty, or a length alone.
fn symbol_len(frame: &FrameBuf) -> Body<'static> {
    match symbol_body(&frame.as_frame()) {
        Body::Virtual(len) => Body::Virtual(len),
        Body::Bytes(_) => Body::EMPTY,
    }
}

/// Receiving half of parity. It uses memory from the first PARITY on, until none has arrived for
/// long.
#[derive(Default)]
pub(crate) struct ParityIn {
    decoder: Option<Box<Decoder<Held>>>,
    /// First number of the group of the last parity.
    last_base: u64,
}

impl ParityIn {
    /// `true` if arrivals must be passed to it.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.decoder.is_some()
    }

    /// Bytes of held frames.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.decoder.as_ref().map_or(0, |decoder| decoder.held_bytes() as u64)
    }

    /// Adds a numbered datagram that arrived. Datagrams that this repairs are appended to `back`:
    /// number, protected head, body.
    #[inline]
    pub(crate) fn on_data(
        &mut self,
        number: u64,
        protected: ProtectedHeader,
        frame: Option<&FrameBuf>,
        mut back: impl FnMut(u64, &[u8], &Body<'_>),
    ) {
        let Some(decoder) = &mut self.decoder else { return };
        if number.saturating_sub(self.last_base) > IDLE_NUMBERS {
            self.decoder = None;
            return;
        }
        let held = Held { protected, frame: frame.cloned() };
        decoder.on_data(number, held, |Recovered { number, head, body }| back(number, head, &body));
    }

    /// Adds a parity with a valid check; held frames may take `bytes_max` bytes.
    pub(crate) fn on_parity(
        &mut self,
        parity: &Parity<'_>,
        bytes_max: u64,
        mut back: impl FnMut(u64, &[u8], &Body<'_>),
    ) -> Result<(), Refusal> {
        let decoder = self.decoder.get_or_insert_with(|| {
            Box::new(Decoder::new(DecoderConfig {
                reach: REACH,
                quiet_reach: QUIET_REACH,
                held_bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
                parities_max: PARITIES_MAX,
            }))
        });
        decoder.on_parity(parity, |Recovered { number, head, body }| back(number, head, &body))?;
        self.last_base = parity.id.base;
        Ok(())
    }
}
