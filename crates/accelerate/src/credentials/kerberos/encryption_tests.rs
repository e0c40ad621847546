//! Published samples, and ciphertexts of MIT Kerberos.

use super::super::super::testing::hexadecimal;
use super::*;

fn opened(number: i64, key: &str, usage: u32, sealed: &str) -> Option<Vec<u8>> {
    let key = KerberosKey::of(number, &hexadecimal(key)).unwrap();
    let opened = key.open(usage, &hexadecimal(sealed))?;
    Some(opened.to_vec())
}

#[test]
fn stealing_is_as_published() {
    // RFC 3962 B (Sample Test Vectors), a block and a byte, one byte less than two blocks, and two blocks.
    let key = b"chicken teriyaki";
    let text = b"I would like the General Gau's C";
    let cases = [
        (17, "c6353568f2bf8cb4d8a580362da7ff7f97"),
        (
            31,
            "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5",
        ),
        (
            32,
            "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584",
        ),
    ];
    for (length, sealed) in cases {
        let mut found = hexadecimal(sealed);
        unsteal::<Aes128>(key, &mut found).unwrap();
        assert_eq!(found[..], text[..length]);
    }
}

#[test]
fn the_published_samples_of_hmac_sha2_are_opened() {
    // RFC 8009 A (Test Vectors), key derivation and encryption for usage 2.
    let key = "3705d96080c17728a0e800eab6e0d23c";
    let short = KerberosKey::of(19, &hexadecimal(key)).unwrap();
    let derived = |purpose, length| short.derive_sha2::<Hmac<Sha256>>(2, purpose, length);
    let wanted = hexadecimal("9b197dd1e8c5609d6e67c3e37c62c72e");
    assert_eq!(derived(ENCRYPTS, 16)[..], wanted[..]);
    let wanted = hexadecimal("9fda0e56ab2d85e1569a688696c26a6c");
    assert_eq!(derived(AUTHENTICATES, 16)[..], wanted[..]);
    let long_key = "6d404d37faf79f9df0d33568d320669800eb4836472ea8a026d16b7182460c52";
    let long = KerberosKey::of(20, &hexadecimal(long_key)).unwrap();
    let derived = |purpose, length| long.derive_sha2::<Hmac<Sha384>>(2, purpose, length);
    let wanted = hexadecimal("56ab22bee63d82d7bc5227f6773f8ea7a5eb1c825160c38312980c442e5c7e49");
    assert_eq!(derived(ENCRYPTS, 32)[..], wanted[..]);
    let wanted = hexadecimal("69b16514e3cd8e56b82010d5c73012b622c4d00ffc23ed1f");
    assert_eq!(derived(AUTHENTICATES, 24)[..], wanted[..]);

    let text = hexadecimal("000102030405060708090a0b0c0d0e0f1011121314");
    let cases = [
        (
            19,
            key,
            6,
            "84d7f30754ed987bab0bf3506beb09cfb55402cef7e6877ce99e247e52d16ed4421dfdf8976c",
        ),
        (
            19,
            key,
            16,
            "3517d640f50ddc8ad3628722b3569d2ae07493fa8263254080ea65c1008e8fc295fb4852e7d83e1e7c48c37eebe6b0d3",
        ),
        (
            19,
            key,
            21,
            "720f73b18d9859cd6ccb4346115cd336c70f58edc0c4437c5573544c31c813bce1e6d072c186b39a413c2f92ca9b8334a287ffcbfc",
        ),
        (
            20,
            long_key,
            6,
            "4ed7b37c2bcac8f74f23c1cf07e62bc7b75fb3f637b9f559c7f664f69eab7b6092237526ea0d1f61cb20d69d10f2",
        ),
        (
            20,
            long_key,
            16,
            "bc47ffec7998eb91e8115cf8d19dac4bbbe2e163e87dd37f49beca92027764f68cf51f14d798c2273f35df574d1f932e40c4ff255b36a266",
        ),
        (
            20,
            long_key,
            21,
            "40013e2df58e8751957d2878bcd2d6fe101ccfd556cb1eae79db3c3ee86429f2b2a602ac86fef6ecb647d6295fae077a1feb517508d2c16b4192e01f62",
        ),
    ];
    for (number, key, length, sealed) in cases {
        assert_eq!(opened(number, key, 2, sealed).unwrap(), text[..length]);
    }
}

#[test]
fn mit_kerberos_ciphertext_is_decrypted() {
    // By krb5_c_encrypt of MIT Kerberos 1.20.1, with the confounders that it drew.
    let cases = [
        (
            17,
            2,
            "7784919eabb8c5d2dfecf90613202d3a",
            "24bdbd49b8b595847f8c7f3815ba5e6d7ce02b57f1ab8b4333ca5751cf",
        ),
        (
            17,
            11,
            "7784919eabb8c5d2dfecf90613202d3a",
            "7a0a1c6f3d503ebe7fd271ebc7872a5420316feb649b0ae9e30bddcac4457347af19e4f38f55abd163616e5028e125c0e7b81ab40824c7f6568044c2",
        ),
        (
            17,
            12,
            "7784919eabb8c5d2dfecf90613202d3a",
            "7d67ebd0e10c39b8b4865b80ec4730379b2a0b1bd49e2a3be31e04d0ed36d8388898225e3ecb5a0b994e3675",
        ),
        (
            18,
            2,
            "7e8b98a5b2bfccd9e6f3000d1a2734414e5b6875828f9ca9b6c3d0ddeaf70411",
            "fdd6814aed880bdfe760c45f046bfc06230952a47691182aa57cf539eb",
        ),
        (
            18,
            11,
            "7e8b98a5b2bfccd9e6f3000d1a2734414e5b6875828f9ca9b6c3d0ddeaf70411",
            "49be4b2b30770413908b4e8f7ea9be9f6aefe0e3d8e846d39bc7ffc3c8a24b655d0d704a11e098089e95db15793bd24ce874dcfa9c66b37216ea557a",
        ),
        (
            18,
            12,
            "7e8b98a5b2bfccd9e6f3000d1a2734414e5b6875828f9ca9b6c3d0ddeaf70411",
            "f1ef31d227d31955375bf459987bf710d4b3c27076f966f67704744ff9cf0cd8aba96bb60ed2e9f392447b0b",
        ),
        (
            19,
            11,
            "85929facb9c6d3e0edfa0714212e3b48",
            "6670df5fe3bf56b1ed10032f0defdfe293b5158fe61eb73ab0c2d600bcd048b3a629172bf935dd85d5f8e629d8215a8aa191c5911855c3f111f5896cad0d5269",
        ),
        (
            20,
            11,
            "8c99a6b3c0cddae7f4010e1b2835424f5c697683909daab7c4d1deebf805121f",
            "2344ddb4d4d995f6fb3977e6b17cb60e2061f9afb790864c95cc0312e4586441dd0fc35713f5c4c8b2a76b3fa7b8b896a8396f1eb43ffa8765f23addb74057a7aa9a5164b3380835",
        ),
        (
            23,
            2,
            "a1aebbc8d5e2effc091623303d4a5764",
            "10d8b7af4add0c56aa4621d4ecdfb694f5d06af397d88abd59",
        ),
        (
            23,
            11,
            "a1aebbc8d5e2effc091623303d4a5764",
            "c9026b6100b48660c002ec7df743a6db3b26e3f8c61f9e7bf514c830caed4bd5a876ba388612e575bb3cd146ac5abea2fa44b1b6c1ba95d1",
        ),
        (
            23,
            12,
            "a1aebbc8d5e2effc091623303d4a5764",
            "ca6eadb3d798d29200aee1ae0f4c8ca57032650799fc08eda5595cb8b1ba0350de68cc746b833832",
        ),
    ];
    for (number, usage, key, sealed) in cases {
        let text: &[u8] = match usage {
            2 => b"1",
            11 => b"the text of two blocks and a bit",
            _ => b"exactly 16 bytes",
        };
        let found = opened(number, key, usage, sealed);
        assert_eq!(found.as_deref(), Some(text), "{number} {usage}");
        // For another use, and with a byte altered, it is nothing.
        assert_eq!(opened(number, key, usage + 1, sealed), None);
        let mut altered = hexadecimal(sealed);
        for at in 0..altered.len() {
            altered[at] ^= 0x10;
            let key = KerberosKey::of(number, &hexadecimal(key)).unwrap();
            assert!(key.open(usage, &altered).is_none(), "{number} {usage} {at}");
            altered[at] ^= 0x10;
        }
    }
}

#[test]
fn short_input_fails_and_own_ciphertext_decrypts() {
    for encryption in EncryptionType::ALL {
        let bytes = vec![7; encryption.key_length()];
        assert!(KerberosKey::of(encryption.number(), &bytes[1..]).is_none());
        let key = KerberosKey::of(encryption.number(), &bytes).unwrap();
        for length in 0..60 {
            assert!(key.open(2, &vec![0; length]).is_none());
            let text = vec![9; length + 1];
            let opened = key.open(2, &key.seal(2, &text));
            assert_eq!(opened.as_deref(), Some(&text));
        }
        // A text of nothing says nothing.
        assert!(key.open(2, &key.seal(2, &[])).is_none());
    }
    assert!(KerberosKey::of(1, &[0; 8]).is_none());
}

#[test]
fn buffers_with_keys_are_overwritten() {
    fn overwrites(_: &impl zeroize::ZeroizeOnDrop) {}
    overwrites(&Aes256::new_from_slice(&[0; 32]).unwrap());
    overwrites(&mac::<Hmac<Sha1>>(&[0; 16], &[]).finalize());
    overwrites(&mac::<Hmac<Sha384>>(&[0; 16], &[]).finalize());
    overwrites(&Zeroizing::new(Vec::<u8>::new()));
}
