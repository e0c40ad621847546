//! Reasons for letting go that only SMB has, and the meaning of common reasons for file shares.
//!
//! The codes are older than the rule that an accelerator's own begin at 64. They are 10 and 14 on the wire
//! (docs/formats/accelerator-frames.md).

use crate::{ReasonCode, ReasonExplanation, ReasonSource};

/// The session is signed by AES-GMAC, which the policy does not allow to sign again (docs/decisions/0040).
pub(crate) const GMAC: ReasonCode = ReasonCode::new(10);

/// The connection is signed as in SMB 1.
pub(crate) const SIGNED_BY_SMB1: ReasonCode = ReasonCode::new(14);

/// The connection is a further channel of a session whose key another connection has.
pub(crate) const CHANNEL: ReasonCode = ReasonCode::new(64);

/// Explains a code for file shares; `None` where the common explanation holds, or there is none.
pub(crate) fn explain(code: ReasonCode, source: ReasonSource<'_>) -> Option<ReasonExplanation> {
    let explanation = match code {
        GMAC => ReasonExplanation::new(
            "the content is signed by AES-GMAC, and the configuration does not permit the node to renew \
             such signatures",
        )
        .with_remedy(
            "have the hosts sign by AES-CMAC, or set resign_gmac = true in [smb] of the far node and accept \
             the risk (docs/decisions/0040)",
        )
        .recurring(),
        SIGNED_BY_SMB1 => ReasonExplanation::new(
            "the content is signed by SMB 1, and in signed SMB 1 the accelerator cannot add messages of its own",
        )
        .with_remedy(
            "use SMB 2 or 3 on both hosts, or do not require signatures of SMB 1 on either host",
        )
        .recurring(),
        CHANNEL => ReasonExplanation::new(
            "the connection is a further channel of a session (SMB multichannel), and the accelerator works \
             only on sessions with one connection",
        )
        .with_remedy(
            "set channels = \"one\" in [smb] of the far node, or mount without the option multichannel \
             (docs/decisions/0046)",
        )
        .recurring(),
        ReasonCode::ENCRYPTED => {
            let common = code.common_explanation()?;
            let delegate = common.remedy.clone().unwrap_or_default();
            common.with_remedy(format!("{delegate}; or switch encryption off for this share"))
        }
        // The node beside the client offers the accelerator or does not, the one beside the server declines it.
        ReasonCode::NO_ACCELERATOR | ReasonCode::POLICY => ReasonExplanation::new(format!(
            "acceleration of file shares (SMB) is switched off on {source} (mode in [smb])"
        ))
        .with_remedy("set mode = \"strict\" in [smb] of both nodes"),
        _ => return None,
    };
    Some(explanation)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_codes_are_stable_and_explained_here() {
        for (code, number) in [(GMAC, 10), (SIGNED_BY_SMB1, 14), (CHANNEL, 64)] {
            assert_eq!(code.to_byte(), number);
            assert_eq!(code.common_explanation(), None);
            let explanation = explain(code, ReasonSource::ThisNode).unwrap();
            assert!(explanation.recurs && explanation.remedy.is_some());
        }
    }

    #[test]
    fn switched_off_accelerator_names_its_node() {
        for code in [ReasonCode::NO_ACCELERATOR, ReasonCode::POLICY] {
            let here = explain(code, ReasonSource::ThisNode).unwrap();
            assert!(here.text.contains("off on this node"), "{}", here.text);
            let there = explain(code, ReasonSource::Peer("east")).unwrap();
            assert!(
                there.text.contains("off on the peer east"),
                "{}",
                there.text
            );
        }
    }

    #[test]
    fn encryption_remedy_mentions_the_share() {
        let explanation = explain(ReasonCode::ENCRYPTED, ReasonSource::ThisNode).unwrap();
        assert!(explanation.recurs);
        let remedy = explanation.remedy.unwrap();
        assert!(
            remedy.starts_with("in [credentials] of the far node, write accounts"),
            "{remedy}"
        );
        assert!(
            remedy.ends_with("; or switch encryption off for this share"),
            "{remedy}"
        );
    }
}
