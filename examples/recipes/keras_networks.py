"""Networks of the papers in Keras: ResNet-20 and VGG-16 for CIFAR-10, an LSTM."""

import tensorflow as tf

from recipes.shapes import VGG16

layers = tf.keras.layers


def convolution(x, channels, stride=1):
    """Apply a 3 x 3 convolution without bias, and batch normalisation."""
    x = layers.Conv2D(channels, 3, stride, padding="same", use_bias=False)(x)
    return layers.BatchNormalization()(x)


def resnet20(classes=10):
    """Return ResNet-20 for images of 32 x 32, with 269,722 trained parameters for 10 classes."""
    images = layers.Input((32, 32, 3))
    x, entering = layers.ReLU()(convolution(images, 16)), 16
    for leaving in (16, 32, 64):
        for _ in range(3):
            shortcut, stride = x, 1
            if leaving != entering:  # keep every second pixel, and fill new channels with 0
                shortcut, stride = _halved(x, leaving - entering), 2
            inner = convolution(layers.ReLU()(convolution(x, leaving, stride)), leaving)
            x, entering = layers.ReLU()(layers.Add()([inner, shortcut])), leaving
    return tf.keras.Model(images, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x)))


def _halved(x, added):
    return layers.Lambda(
        lambda pixels: tf.pad(pixels[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, added)))
    )(x)


def vgg16(classes=10):
    """Return VGG-16 for images of 32 x 32, with normalisation and one dense layer."""
    x = images = layers.Input((32, 32, 3))
    for channels in VGG16:
        x = layers.ReLU()(convolution(x, channels)) if channels else layers.MaxPooling2D(2)(x)
    return tf.keras.Model(images, layers.Dense(classes)(layers.Flatten()(x)))


def language(vocabulary, batch, width=1500, dropout=0.65):
    """Return a language model: an embedding, an LSTM of two layers, and a layer of logits.

    There is dropout between the layers. The LSTM keeps its state from batch to batch.
    """
    uniform = tf.keras.initializers.RandomUniform(-0.04, 0.04)
    words = layers.Input((None,), batch_size=batch)
    x = layers.Embedding(vocabulary, width, embeddings_initializer=uniform)(words)
    for _ in range(2):
        x = layers.Dropout(dropout)(x)
        x = layers.LSTM(
            width,
            return_sequences=True,
            stateful=True,
            kernel_initializer=uniform,
            recurrent_initializer=uniform,
        )(x)
    x = layers.Dropout(dropout)(x)
    return tf.keras.Model(words, layers.Dense(vocabulary, kernel_initializer=uniform)(x))
