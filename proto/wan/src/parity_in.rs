//! The receiver's side of parity, for one path: what has come is held until its group is complete
//! or given up.

use crate::format::{ProtectedHeader, symbol_body};
use longhaul_fec::{Body, Decoder, DecoderConfig, HEAD_MAX, Parity, Recovered, Refusal, Symbol};
use longhaul_node::FrameBuf;

/// Numbers back that repair is possible: twice the longest block.
const REACH: usize = 16_384;
/// Numbers back that are held while no parity comes.
const QUIET_REACH: usize = 256;
/// Parities kept at a time, for groups that miss something: two of the widest blocks'.
const PARITIES_MAX: usize = 1024;
/// Numbers without any parity after which all is let go of.
const IDLE_NUMBERS: u64 = 16 * REACH as u64;

/// A numbered datagram that came.
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

/// The body of a frame without bytes: none, or a length alone.
fn symbol_len(frame: &FrameBuf) -> Body<'static> {
    match symbol_body(&frame.as_frame()) {
        Body::Virtual(len) => Body::Virtual(len),
        Body::Bytes(_) => Body::EMPTY,
    }
}

/// See the module. It takes memory from the first PARITY on, until none has come for long.
#[derive(Default)]
pub(crate) struct ParityIn {
    decoder: Option<Box<Decoder<Held>>>,
    /// First number of the group that parity last came for.
    last_base: u64,
}

impl ParityIn {
    /// True when what comes is to be shown to it.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.decoder.is_some()
    }

    /// Bytes of frames that are held.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.decoder.as_ref().map_or(0, |decoder| decoder.held_bytes() as u64)
    }

    /// Takes a numbered datagram that came. What comes back by it goes to `back`: number, protected
    /// head, body.
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

    /// Takes a parity whose check is right; frames may take `bytes_max` bytes.
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
